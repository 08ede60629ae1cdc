// The handshake: the one place where numbers and descriptors of the daemon become mappings.

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/library/attachment.hpp"
#include "client/library/wire.hpp"
#include "shared/fault_point.hpp"
#include "shared/seqpacket.hpp"

namespace hotkv::client {
namespace {

using protocol::AttachReply;

Error attach_error(ErrorCode code, std::string_view object, std::string cause) {
  return Error{code, "attach", std::string(object), std::move(cause)};
}

Error damaged(std::string_view object, std::string cause) {
  return attach_error(ErrorCode::shard_damaged, object, std::move(cause));
}

// ---- talking ------------------------------------------------------------------------------------

// One request and its reply on the caller's thread. ForkExclusion is taken before descriptors can
// come.
class Handshake {
 public:
  Handshake(int socket, Deadline deadline, const Wakeup* wakeup)
      : socket_(socket), deadline_(deadline), wakeup_(wakeup) {}

  std::expected<void, Error> send(Request request) {
    const Frame frame = std::move(request).seal(++id_);
    for (;;) {
      const auto sent = send_frame(socket_, frame);
      if (!sent) return std::unexpected(sent.error());
      // A closed socket shows when the reply is received: the daemon may have said why.
      if (*sent != FrameOutcome::would_block) return {};
      if (auto writable = wait_writable(socket_, deadline_); !writable) return writable;
    }
  }

  std::expected<Reply, Error> receive(protocol::Type type, std::size_t result_bytes,
                                      ReceivedDescriptors& descriptors) {
    std::vector<std::byte> buffer(protocol::kFrameBytesMax);
    auto received = receive_frame(socket_, buffer, descriptors);
    if (!received) return std::unexpected(std::move(received.error()));
    if (received->outcome != FrameOutcome::ok) {
      return std::unexpected(attach_error(ErrorCode::daemon_unavailable, "daemon", "it hung up"));
    }
    auto reply = Reply::parse(std::span(buffer).first(received->size_bytes));
    if (!reply) return reply;
    // A daemon that refuses a connection says so without having been asked: request id 0.
    if (reply->is_failure()) return std::unexpected(reply->failure());
    if (reply->header().request_id != id_) {
      return std::unexpected(attach_error(ErrorCode::protocol_error, "reply",
                                          "its request id is not that of the request"));
    }
    if (auto checked = reply->check(type, 1, result_bytes); !checked) {
      return std::unexpected(std::move(checked.error()));
    }
    return reply;
  }

  std::expected<void, Error> wait() {
    if (wakeup_ == nullptr) return wait_readable(socket_, deadline_);
    while (!wakeup_->is_stopping()) {
      const auto came = wakeup_->wait(socket_, POLLIN, deadline_);
      if (!came) return std::unexpected(came.error());
      if (*came != 0) return {};
      if (std::chrono::steady_clock::now() >= deadline_) {
        return std::unexpected(
            attach_error(ErrorCode::deadline_exceeded, "daemon", "no answer in time"));
      }
    }
    return std::unexpected(
        attach_error(ErrorCode::daemon_unavailable, "daemon", "this client detached"));
  }

 private:
  int socket_;
  Deadline deadline_;
  const Wakeup* wakeup_;
  std::uint64_t id_ = 0;
};

std::expected<void, Error> say_hello(Handshake& handshake) {
  Request request(protocol::Type::hello);
  request.add(protocol::HelloRequest{protocol::kVersionMin, protocol::kVersionMax});
  if (auto sent = handshake.send(std::move(request)); !sent) return sent;
  if (auto ready = handshake.wait(); !ready) return ready;
  ReceivedDescriptors unexpected;
  const auto reply =
      handshake.receive(protocol::Type::hello, sizeof(protocol::HelloReply), unexpected);
  if (!reply) return std::unexpected(reply.error());
  const auto hello = reply->result<protocol::HelloReply>(0);
  if (hello.version < protocol::kVersionMin || hello.version > protocol::kVersionMax) {
    return std::unexpected(
        attach_error(ErrorCode::unsupported_version, "protocol",
                     "the daemon chose version " + std::to_string(hello.version)));
  }
  if (hello.layout_version != kLayoutVersion) {
    return std::unexpected(
        attach_error(ErrorCode::unsupported_version, "layout",
                     "the daemon has version " + std::to_string(hello.layout_version) +
                         ", this library needs " + std::to_string(kLayoutVersion)));
  }
  return {};
}

// ---- checking -----------------------------------------------------------------------------------

// A file as large as the daemon says, which cannot shrink under the mapping.
std::expected<void, Error> check_file(const UniqueFd& fd, std::uint64_t untrusted_bytes,
                                      std::string_view role) {
  struct stat status {};
  if (::fstat(fd.get(), &status) != 0) {
    return std::unexpected(system_error("fstat", std::string(role)));
  }
  if (!S_ISREG(status.st_mode) || static_cast<std::uint64_t>(status.st_size) != untrusted_bytes) {
    return std::unexpected(damaged(role, "the daemon says " + std::to_string(untrusted_bytes) +
                                             " bytes, the file has " +
                                             std::to_string(status.st_size)));
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) return std::unexpected(system_error("get seals of", std::string(role)));
  if ((seals & F_SEAL_SHRINK) == 0) {
    return std::unexpected(damaged(role, "the file is not sealed against shrinking"));
  }
  return {};
}

// The caller's recipe against the shard's, byte by byte; the words are only for people.
std::expected<void, Error> check_recipe(const RecipeRecord& untrusted_record,
                                        const Recipe& recipe) {
  const RecipeRecord mine = encode_recipe(recipe);
  if (std::memcmp(&mine, &untrusted_record, sizeof mine) == 0) return {};
  std::vector<std::string> known = default_certified_architectures();
  known.push_back(recipe.fields().architecture);
  const auto theirs = decode_recipe(untrusted_record, known);
  return std::unexpected(
      attach_error(ErrorCode::incompatible_recipe, "model \"" + recipe.fields().model_id + "\"",
                   theirs ? recipe.difference_from(*theirs) : theirs.error().cause));
}

std::expected<void, Error> check_geometry(const Geometry& geometry, const Recipe& recipe) {
  if (geometry.layer_count != recipe.fields().layers.count() ||
      geometry.key_row_bytes != recipe.key_row_bytes() ||
      geometry.value_row_bytes != recipe.value_row_bytes()) {
    return std::unexpected(damaged("geometry", "row sizes are not those of the recipe"));
  }
  return {};
}

std::expected<ShardFacts, Error> check_facts(const Mapping& tables, const AttachReply& reply,
                                             const Recipe& recipe) {
  if (tables.bytes().size() < sizeof(TablesHeader)) {
    return std::unexpected(damaged("tables", "the file is smaller than its header"));
  }
  // A copy, checked and used in place of the shared one.
  TablesHeader header{};
  std::memcpy(static_cast<void*>(&header), tables.bytes().data(), sizeof header);
  if (auto checked = check_header(header); !checked) return std::unexpected(checked.error());
  if (header.tables_bytes != reply.tables_bytes || header.arena_bytes != reply.arena_bytes ||
      header.pages_bytes != reply.pages_bytes) {
    return std::unexpected(damaged("file sizes", "the reply and the header differ"));
  }
  if (header.boot_token == 0 || header.boot_token != reply.boot_token) {
    return std::unexpected(damaged("boot token", "the reply and the header differ"));
  }
  if (header.state.load(std::memory_order_relaxed) !=
      static_cast<std::uint32_t>(ShardState::open)) {
    return std::unexpected(damaged("state", "the shard is closed"));
  }
  if (auto checked = check_recipe(header.recipe, recipe); !checked) {
    return std::unexpected(checked.error());
  }
  ShardFacts facts;
  facts.boot_token = reply.boot_token;
  facts.cookie = reply.cookie;
  facts.page = PageIndex{reply.page};
  std::ranges::copy(header.hash_key, facts.hash_key);
  facts.capacities = header.capacities;
  facts.geometry = decode_geometry(header.geometry);
  facts.layout = FileLayout::of(facts.capacities, facts.geometry);
  if (auto checked = check_geometry(facts.geometry, recipe); !checked) {
    return std::unexpected(checked.error());
  }
  if (reply.page >= facts.capacities.page_count) {
    return std::unexpected(damaged("page", "number " + std::to_string(reply.page) + " of " +
                                               std::to_string(facts.capacities.page_count)));
  }
  return facts;
}

// ---- mapping ------------------------------------------------------------------------------------

std::expected<Mapping, Error> map_part(const UniqueFd& fd, std::uint64_t offset_bytes,
                                       std::uint64_t size_bytes, MapAccess access,
                                       std::string_view role) {
  MappingOptions options;
  options.offset_bytes = offset_bytes;
  options.size_bytes = size_bytes;
  options.access = access;
  return Mapping::map(fd.get(), options, role);
}

std::expected<Mapping, Error> map_arena(const UniqueFd& fd, const ShardFacts& facts,
                                        Access access) {
  MappingOptions options;
  options.size_bytes = facts.layout.arena_bytes;
  options.access = access == Access::write ? MapAccess::read_write : MapAccess::read_only;
  options.align_to_huge_page = true;
  options.advise_huge_pages = facts.geometry.extent_bytes % kHugePageBytes == 0;
  return Mapping::map(fd.get(), options, "arena");
}

std::expected<AttachedShard, Error> map_shard(const AttachReply& reply,
                                              const ReceivedDescriptors& descriptors,
                                              const Recipe& recipe, Access access) {
  if (descriptors.count != protocol::kAttachDescriptors) {
    return std::unexpected(
        attach_error(ErrorCode::protocol_error, "reply",
                     std::to_string(descriptors.count) + " descriptors came, expected 3"));
  }
  const UniqueFd& tables_fd = descriptors.fds[0];
  const UniqueFd& arena_fd = descriptors.fds[1];
  const UniqueFd& pages_fd = descriptors.fds[2];
  if (auto checked = check_file(tables_fd, reply.tables_bytes, "tables"); !checked) {
    return std::unexpected(checked.error());
  }
  if (auto checked = check_file(arena_fd, reply.arena_bytes, "arena"); !checked) {
    return std::unexpected(checked.error());
  }
  if (auto checked = check_file(pages_fd, reply.pages_bytes, "pages"); !checked) {
    return std::unexpected(checked.error());
  }
  AttachedShard shard;
  auto tables = map_part(tables_fd, 0, reply.tables_bytes, MapAccess::read_only, "tables");
  if (!tables) return std::unexpected(std::move(tables.error()));
  auto facts = check_facts(*tables, reply, recipe);
  if (!facts) return std::unexpected(std::move(facts.error()));
  auto arena = map_arena(arena_fd, *facts, access);
  if (!arena) return std::unexpected(std::move(arena.error()));
  auto touch_words = map_part(pages_fd, 0, facts->layout.client_pages.value(),
                              MapAccess::read_write, "touch words");
  if (!touch_words) return std::unexpected(std::move(touch_words.error()));
  auto page = map_part(pages_fd, facts->layout.client_page(facts->page).value(), sizeof(ClientPage),
                       MapAccess::read_write, "page");
  if (!page) return std::unexpected(std::move(page.error()));
  shard.facts = *facts;
  shard.mappings = {std::move(*tables), std::move(*arena), std::move(*touch_words),
                    std::move(*page)};
  return shard;
}

// ---- both ways ----------------------------------------------------------------------------------

struct Talk {
  ParentOnlyFd socket;
  Handshake handshake;
};

// A thread that must be able to stop cannot be woken out of the kernel's wait for room in the
// daemon's queue of connections. It waits there for this long and then comes again.
constexpr auto kQueueWaitMax = std::chrono::milliseconds(50);

// Connected, HELLO said.
std::expected<Talk, Error> begin(std::string_view socket_path, const HandshakeLimits& limits) {
  const Deadline connected_by =
      limits.wakeup == nullptr
          ? limits.deadline
          : std::min(limits.deadline, std::chrono::steady_clock::now() + kQueueWaitMax);
  auto socket = connect_seqpacket(socket_path, connected_by);
  if (!socket) return std::unexpected(std::move(socket.error()));
  const int number = socket->get();
  Talk talk{ParentOnlyFd(std::move(*socket)), Handshake(number, limits.deadline, limits.wakeup)};
  if (auto hello = say_hello(talk.handshake); !hello) {
    return std::unexpected(std::move(hello.error()));
  }
  return talk;
}

// Sends ATTACH and waits until an answer can be received.
std::expected<void, Error> ask_attach(Talk& talk, const protocol::AttachRequest& operation) {
  Request request(protocol::Type::attach);
  request.add(operation);
  if (auto sent = talk.handshake.send(std::move(request)); !sent) return sent;
  HOTKV_FAULT_POINT("attach.after-send");
  return talk.handshake.wait();
}

}  // namespace

std::expected<AttachedShard, Error> attach_shard(std::string_view socket_path, const Recipe& recipe,
                                                 Access access, const HandshakeLimits& limits) {
  auto talk = begin(socket_path, limits);
  if (!talk) return std::unexpected(std::move(talk.error()));
  const protocol::AttachRequest request{encode_recipe(recipe), static_cast<std::uint32_t>(access),
                                        0, 0};
  if (auto asked = ask_attach(*talk, request); !asked) return std::unexpected(asked.error());
  // A child forked between here and the end would inherit the page's lock, and this client would
  // seem alive for as long as the child is.
  const ForkExclusion no_fork;
  ReceivedDescriptors descriptors;
  const auto reply =
      talk->handshake.receive(protocol::Type::attach, sizeof(AttachReply), descriptors);
  if (!reply) return std::unexpected(reply.error());
  const auto attach_reply = reply->result<AttachReply>(0);
  if (reply->header().boot_token != 0 && reply->header().boot_token != attach_reply.boot_token) {
    return std::unexpected(
        attach_error(ErrorCode::protocol_error, "reply", "it carries two boot tokens"));
  }
  auto shard = map_shard(attach_reply, descriptors, recipe, access);
  if (shard) shard->socket = std::move(talk->socket);
  return shard;
}

std::expected<ParentOnlyFd, Error> come_back_to_shard(std::string_view socket_path,
                                                      const Recipe& recipe, Access access,
                                                      const ShardFacts& facts,
                                                      const HandshakeLimits& limits) {
  auto talk = begin(socket_path, limits);
  if (!talk) return std::unexpected(std::move(talk.error()));
  const protocol::AttachRequest request{encode_recipe(recipe), static_cast<std::uint32_t>(access),
                                        facts.page.value() + 1, facts.cookie};
  if (auto asked = ask_attach(*talk, request); !asked) return std::unexpected(asked.error());
  ReceivedDescriptors descriptors;  // closed again, should any come
  const auto reply =
      talk->handshake.receive(protocol::Type::attach, sizeof(AttachReply), descriptors);
  if (!reply) return std::unexpected(reply.error());
  const auto back = reply->result<AttachReply>(0);
  // Any difference would mean that mappings and daemon are not about the same memory.
  const std::uint64_t header_token = reply->header().boot_token;
  if (back.boot_token != facts.boot_token ||
      (header_token != 0 && header_token != facts.boot_token) || back.cookie != facts.cookie ||
      back.page != facts.page.value() || back.tables_bytes != facts.layout.tables_bytes ||
      back.arena_bytes != facts.layout.arena_bytes ||
      back.pages_bytes != facts.layout.pages_bytes || descriptors.count != 0) {
    return std::unexpected(attach_error(ErrorCode::protocol_error, "reply",
                                        "it is not about the page that was named"));
  }
  return std::move(talk->socket);
}

}  // namespace hotkv::client
