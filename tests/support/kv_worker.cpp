#include "tests/support/kv_worker.hpp"

#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "tests/support/raw_client.hpp"

namespace hotkv::testing {
namespace {

Client attach_or_abort(const std::string& control_path, const Recipe& recipe, Access access) {
  ClientOptions options;
  options.socket_path = control_path;
  options.access = access;
  auto client = Client::attach(options, recipe);
  if (!client) {
    std::fprintf(stderr, "attach: %s\n", client.error().message().c_str());
    std::abort();
  }
  return std::move(*client);
}

SessionId session_id(std::string_view session) {
  return SessionId::from(session).value();
}

// False at the end of file, or after the patience of the socket.
bool receive_turn(int end) {
  char byte;
  for (;;) {
    const ssize_t received = ::recv(end, &byte, 1, 0);
    if (received == 1) return true;
    if (received == 0 || errno != EINTR) return false;  // a wait that was stopped is interrupted
  }
}

}  // namespace

Recipe worker_recipe(LayerRange layers, std::string model) {
  return Recipe::make({"llama", std::move(model), DType::f16, 2, 8, 8, layers}).value();
}

KvWorker::KvWorker(const std::string& control_path, const Recipe& recipe, Access access)
    : client_(attach_or_abort(control_path, recipe, access)) {}

std::expected<void, Refusal> KvWorker::open(std::string_view session, std::uint64_t epoch) {
  auto opened = client_.open(session_id(session), Epoch{epoch});
  if (!opened) return std::unexpected(opened.error());
  contexts_.insert_or_assign(std::string(session), std::move(*opened));
  return {};
}

void KvWorker::fill(std::string_view session, std::uint64_t epoch, Writer& writer,
                    std::uint32_t from, std::uint32_t to, std::uint32_t version) const {
  const Recipe& recipe = client_.recipe();
  std::vector<std::byte> row;
  for (std::uint32_t token = from; token < to; ++token) {
    for (std::uint32_t layer = recipe.fields().layers.first; layer <= recipe.fields().layers.last;
         ++layer) {
      const std::uint32_t position = writer.position().value() + token;
      row.resize(recipe.key_row_bytes());
      bench::fill_row(row, {session, epoch, position, layer, bench::Half::keys, version});
      if (!writer.write_keys(layer, TokenCount{token}, row)) std::abort();
      row.resize(recipe.value_row_bytes());
      bench::fill_row(row, {session, epoch, position, layer, bench::Half::values, version});
      if (!writer.write_values(layer, TokenCount{token}, row)) std::abort();
    }
  }
}

std::expected<TokenCount, Refusal> KvWorker::append(std::string_view session, std::uint32_t tokens,
                                                    std::uint32_t version) {
  Context& held = context(session);
  auto writer = held.append(TokenCount{tokens});
  if (!writer) return std::unexpected(writer.error());
  fill(session, held.epoch().value(), *writer, 0, tokens, version);
  auto length = writer->publish();
  if (!length) return std::unexpected(Refusal(length.error()));
  return *length;
}

std::size_t wrong_bytes(const Recipe& recipe, std::string_view session, std::uint64_t epoch,
                        const View& view, const std::vector<std::uint32_t>& versions) {
  std::size_t wrong = 0;
  std::uint32_t position = 0;
  for (std::size_t piece = 0; piece < view.piece_count(); ++piece) {
    for (std::uint32_t i = 0; i < view.piece_tokens(piece).value(); ++i, ++position) {
      const std::uint32_t version = position < versions.size() ? versions[position] : 0;
      for (std::uint32_t layer = recipe.fields().layers.first; layer <= recipe.fields().layers.last;
           ++layer) {
        const auto keys = view.keys(layer, piece);
        const auto values = view.values(layer, piece);
        wrong +=
            bench::wrong_bytes(keys.subspan(i * recipe.key_row_bytes(), recipe.key_row_bytes()),
                               {session, epoch, position, layer, bench::Half::keys, version});
        wrong += bench::wrong_bytes(
            values.subspan(i * recipe.value_row_bytes(), recipe.value_row_bytes()),
            {session, epoch, position, layer, bench::Half::values, version});
      }
    }
  }
  return position == view.length().value() ? wrong : wrong + 1;
}

Turns::Turns() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
  parent_end_ = UniqueFd(ends[0]);
  child_end_ = UniqueFd(ends[1]);
  // Children that are forked later hold these ends, too, so that not every death shows as an end of
  // file: no wait is longer than this.
  const timeval patience{.tv_sec = 20, .tv_usec = 0};
  for (const int end : ends) {
    ::setsockopt(end, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  }
}

void Turns::arrive() const {
  (void)::send(child_end_.get(), "x", 1, MSG_NOSIGNAL);
}

void Turns::arrive_and_wait() const {
  arrive();
  if (!receive_turn(child_end_.get())) ::_exit(99);
}

bool Turns::wait_for_child() {
  child_end_.reset();  // the parent's copy, so that a dead child shows as end of file
  return receive_turn(parent_end_.get());
}

void Turns::go_on() const {
  (void)::send(parent_end_.get(), "x", 1, MSG_NOSIGNAL);
}

std::string admin_get(const DaemonProcess& daemon, const std::string& target) {
  return exchange_text(daemon.admin_path(), "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

nlohmann::json admin_page(const DaemonProcess& daemon, const std::string& target) {
  const std::string reply = admin_get(daemon, target);
  const auto body = reply.find("\r\n\r\n");
  return nlohmann::json::parse(body == std::string::npos ? "null" : reply.substr(body + 4));
}

nlohmann::json shard_status(const DaemonProcess& daemon, const std::string& model) {
  const nlohmann::json status = admin_page(daemon, "/status");
  for (const auto& shard : status.at("shards")) {
    if (shard.at("key").at("model_id") == model) return shard;
  }
  return nullptr;
}

std::string broken_invariant(const DaemonProcess& daemon) {
  const std::string reply = admin_get(daemon, "/verify");
  return reply.starts_with("HTTP/1.1 200") ? "" : reply;
}

std::uint64_t status_number(const DaemonProcess& daemon, const std::string& place) {
  return admin_page(daemon, "/status").value(nlohmann::json::json_pointer(place), std::uint64_t{0});
}

std::uint64_t refusals(const DaemonProcess& daemon, const std::string& code) {
  const nlohmann::json status = admin_page(daemon, "/status");
  std::uint64_t sum = 0;
  for (const auto& shard : status.at("shards")) {
    sum += shard.at("counters").at("refusals").value(code, std::uint64_t{0});
  }
  return sum;
}

std::uint64_t account_bytes(const DaemonProcess& daemon, const std::string& name) {
  return status_number(daemon, "/account/" + name);
}

std::uint64_t frames_received(const DaemonProcess& daemon) {
  return status_number(daemon, "/server/frames_received");
}

}  // namespace hotkv::testing
