#include "daemon/server/dispatcher.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

#include "daemon/core/pid_text.hpp"

namespace hotkv::server {
namespace {

using protocol::Type;

Error refusal(ErrorCode code, std::string cause) {
  return Error{code, "handle", "frame", std::move(cause), 0};
}

}  // namespace

// What must have come before a frame of a type, what its sender must be, and who does it.
struct Dispatcher::Route {
  enum class After { connect, hello, attach };
  After after = After::attach;
  bool writes = false;  // refused for clients that attached for reading
  void (Dispatcher::*handle)(Conversation&, const Request&) = nullptr;
};

const Dispatcher::Route& Dispatcher::route_of(Type type) {
  using enum Route::After;
  // In the order of the types' numbers, which decode_frame has checked.
  static constexpr std::array<Route, 8> kRoutes{{
      {connect, false, &Dispatcher::hello},
      {hello, false, &Dispatcher::attach},
      {attach, true, &Dispatcher::open},
      {attach, true, &Dispatcher::append},
      {attach, true, &Dispatcher::truncate},
      {attach, true, &Dispatcher::close},
      {attach, false, &Dispatcher::release},
      {attach, false, &Dispatcher::explain},
  }};
  return kRoutes[static_cast<std::size_t>(type) - 1];
}

void Dispatcher::handle(Conversation& conversation, std::span<const std::byte> untrusted_frame) {
  ++counters_.frames_received;
  const auto request = decode_frame(untrusted_frame);
  if (!request) return refuse(conversation, request.error());
  const Route& route = route_of(request->type);
  if (route.after != Route::After::connect && !conversation.greeted) {
    return refuse(conversation, *request,
                  refusal(ErrorCode::protocol_error, "expected HELLO as the first frame"));
  }
  if (route.after == Route::After::attach && !conversation.client) {
    return refuse(conversation, *request,
                  refusal(ErrorCode::not_attached, "expected ATTACH before operations"));
  }
  if (route.writes && conversation.access != Access::write) {
    return refuse(conversation, *request,
                  refusal(ErrorCode::read_only, "this client attached for reading"));
  }
  (this->*route.handle)(conversation, *request);
  settle();
}

void Dispatcher::hello(Conversation& conversation, const Request& request) {
  const auto hello = decode_operations<protocol::HelloRequest>(request);
  if (!hello) return refuse(conversation, request, hello.error());
  if (conversation.greeted) {
    return refuse(conversation, request, refusal(ErrorCode::protocol_error, "a second HELLO"));
  }
  const protocol::HelloRequest& range = hello->front();
  const std::uint32_t version = std::min(range.version_max, protocol::kVersionMax);
  if (version < std::max(range.version_min, protocol::kVersionMin)) {
    return refuse(conversation, request,
                  refusal(ErrorCode::unsupported_version,
                          "protocol: the client speaks " + std::to_string(range.version_min) +
                              " to " + std::to_string(range.version_max) + ", the daemon " +
                              std::to_string(protocol::kVersionMin) + " to " +
                              std::to_string(protocol::kVersionMax)));
  }
  conversation.greeted = true;
  send(conversation, encode_body(request, 0, protocol::HelloReply{version, kLayoutVersion}));
}

void Dispatcher::attach(Conversation& conversation, const Request& request) {
  if (conversation.client) {
    return refuse(conversation, request,
                  refusal(ErrorCode::already_attached, "one connection is one client"));
  }
  const auto arguments = decode_operations<protocol::AttachRequest>(request);
  if (!arguments) return refuse(conversation, request, arguments.error());
  const auto end_connection = [this](core::ClientId client) {
    const auto found = attached_.find(client);
    if (found == attached_.end()) return;
    Conversation& earlier = *found->second;
    earlier.hang_up();
    disconnected(earlier);
  };
  auto attached = attacher_.attach(conversation.peer, arguments->front(), end_connection);
  if (!attached) return refuse(conversation, request, std::move(attached.error()));
  conversation.client = attached->client;
  attached_.insert_or_assign(attached->client, &conversation);
  conversation.access = arguments->front().access;
  conversation.boot_token = attached->boot_token;
  protocol::AttachReply reply{};
  reply.boot_token = attached->boot_token;
  reply.cookie = attached->cookie;
  reply.page = attached->client.page.value();
  reply.tables_bytes = attached->files.tables_bytes;
  reply.arena_bytes = attached->files.arena_bytes;
  reply.pages_bytes = attached->files.pages_bytes;
  ++counters_.frames_sent;
  conversation.send(
      {encode_body(request, attached->boot_token, reply), std::move(attached->files.descriptors)});
}

template <class Operation, class Operate>
void Dispatcher::run(Conversation& conversation, const Request& request, Operate operate) {
  const auto operations = decode_operations<Operation>(request);
  if (!operations) return refuse(conversation, request, operations.error());
  Reply reply(request.type, request.request_id, request.count);
  for (std::size_t index = 0; index < operations->size(); ++index) {
    reply.set(index, operate(*conversation.client, (*operations)[index]));
  }
  core_.end_message(conversation.client->shard);
  send(conversation, reply.encode(conversation.boot_token));
}

void Dispatcher::open(Conversation& conversation, const Request& request) {
  run<protocol::OpenOperation>(
      conversation, request, [&](core::ClientId client, const OpenArguments& open) {
        return core_.open(client, open.session, open.epoch, open.fingerprint);
      });
}

void Dispatcher::truncate(Conversation& conversation, const Request& request) {
  run<protocol::TruncateOperation>(
      conversation, request, [&](core::ClientId client, const TruncateArguments& truncate) {
        return core_.truncate(client, truncate.session, truncate.epoch, truncate.generation,
                              truncate.from, truncate.to);
      });
}

void Dispatcher::close(Conversation& conversation, const Request& request) {
  run<protocol::CloseOperation>(
      conversation, request, [&](core::ClientId client, const CloseArguments& close) {
        return core_.close(client, close.session, close.epoch, close.generation);
      });
}

void Dispatcher::release(Conversation& conversation, const Request& request) {
  run<protocol::ReleaseOperation>(conversation, request,
                                  [&](core::ClientId client, const ReleaseArguments& release) {
                                    return core_.release(client, release.session, release.epoch,
                                                         release.generation, release.slot);
                                  });
}

void Dispatcher::explain(Conversation& conversation, const Request& request) {
  run<protocol::ExplainOperation>(
      conversation, request, [&](core::ClientId client, const ExplainArguments& explain) {
        return core_.explain(client, explain.session, explain.epoch, explain.fingerprint,
                             explain.expected, explain.match);
      });
}

// The one kind whose results can come later. The frame is answered when it has all of them.
void Dispatcher::append(Conversation& conversation, const Request& request) {
  const auto operations = decode_operations<protocol::AppendOperation>(request);
  if (!operations) return refuse(conversation, request, operations.error());
  const auto frame = std::make_shared<WaitingFrame>(
      WaitingFrame{&conversation, Reply(request.type, request.request_id, request.count)});
  for (std::size_t index = 0; index < operations->size(); ++index) {
    const AppendArguments& append = (*operations)[index];
    const auto answer = core_.append(*conversation.client, append.session, append.epoch,
                                     append.generation, append.up_to);
    if (const auto* waiting = std::get_if<core::Waiting>(&answer)) {
      waiting_.emplace(waiting->ticket, WaitingResult{frame, index});
      ++frame->open_results;
    } else if (const auto* refused = std::get_if<Refusal>(&answer)) {
      frame->reply.set(index, *refused);
    } else {
      frame->reply.set(index, std::get<core::Position>(answer));
    }
  }
  core_.end_message(conversation.client->shard);
  if (frame->open_results == 0) {
    return send(conversation, frame->reply.encode(conversation.boot_token));
  }
  ++conversation.waiting_frames;
  ++counters_.waiting_frames;
}

void Dispatcher::refuse(Conversation& conversation, const Request& request, Error error) {
  refuse(conversation, FrameRefusal{static_cast<std::uint16_t>(request.type), request.request_id,
                                    std::move(error)});
}

void Dispatcher::refuse(Conversation& conversation, const FrameRefusal& refusal) {
  counters_.count_refused_frame(refusal.error.code);
  log_.warn(to_string(refusal.error.code), "uid=" + std::to_string(conversation.peer.uid) +
                                               " pid=" + core::pid_text(conversation.peer.pid) +
                                               " frame_type=" + std::to_string(refusal.type) +
                                               " cause=\"" + escape_bytes(refusal.error.message()) +
                                               "\"");
  send(conversation, encode_refusal(refusal, conversation.boot_token));
}

void Dispatcher::send(Conversation& conversation, FrameBytes bytes) {
  ++counters_.frames_sent;
  conversation.send({std::move(bytes), {}});
}

void Dispatcher::disconnected(Conversation& conversation) {
  if (conversation.waiting_frames != 0) {
    std::erase_if(waiting_, [&](const auto& entry) {
      return entry.second.frame->conversation == &conversation;
    });
  }
  counters_.waiting_frames -= std::exchange(conversation.waiting_frames, 0);
  const auto client = std::exchange(conversation.client, std::nullopt);
  if (!client) return;
  attached_.erase(*client);
  core_.disconnected(*client);
  core_.end_message(client->shard);
  settle();
}

void Dispatcher::memory_order_done(std::uint64_t order_id, std::expected<void, Error> result,
                                   bool punched) {
  if (!result) log_.warn("memory-order-failed", "cause=\"" + result.error().message() + "\"");
  core_.memory_order_done(order_id, std::move(result), punched);
  settle();
}

void Dispatcher::tick() {
  core_.tick();
  settle();
}

void Dispatcher::go_on() {
  core_.end_some_leases();
  settle();
}

void Dispatcher::settle() {
  for (const core::ShardId shard : core_.take_dropped_shards()) files_.drop(shard);
  for (const core::ClientId client : core_.take_gone_clients()) {
    if (const auto found = attached_.find(client); found != attached_.end()) {
      log_.warn("client-gone", "pid=" + core::pid_text(found->second->peer.pid) +
                                   " cause=\"its mapping is gone, its socket is held open\"");
      found->second->hang_up();
    }
  }
  run_memory_orders();
  for (const core::FinishedGrant& grant : core_.take_finished_grants()) answer(grant);
  if (core_.has_leases_to_end()) later_();
}

// An order that cannot even begin is reported as failed, and the core may answer with another one,
// for instance a smaller one; each failure ends at least one wait, so this comes to an end.
void Dispatcher::run_memory_orders() {
  for (auto orders = core_.take_memory_orders(); !orders.empty();
       orders = core_.take_memory_orders()) {
    for (const core::MemoryOrder& order : orders) {
      auto begun = files_.run(order);
      if (!begun) core_.memory_order_done(order.id, std::unexpected(begun.error()), false);
    }
  }
}

void Dispatcher::answer(const core::FinishedGrant& grant) {
  const auto found = waiting_.find(grant.ticket);
  if (found == waiting_.end()) return;  // its connection is gone
  const auto [frame, index] = std::move(found->second);
  waiting_.erase(found);
  frame->reply.set(index, grant.outcome);
  if (--frame->open_results != 0) return;
  --frame->conversation->waiting_frames;
  --counters_.waiting_frames;
  send(*frame->conversation, frame->reply.encode(frame->conversation->boot_token));
}

}  // namespace hotkv::server
