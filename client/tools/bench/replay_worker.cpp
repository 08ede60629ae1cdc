#include "client/tools/bench/replay_worker.hpp"

#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "client/tools/bench/kv_rows.hpp"

namespace hotkv::bench {
namespace {

constexpr Epoch kEpoch{1};
static_assert(std::is_trivially_copyable_v<ReplayTask>);
static_assert(std::is_trivially_copyable_v<ReplayOutcome>);

// Runs `call` and adds what it took to `ns`.
template <class Call>
auto timed(std::uint64_t& ns, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = call();
  ns += static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count());
  return result;
}

void note(ReplayOutcome& outcome, const Refusal& refusal) {
  if (refusal.is_miss()) {
    outcome.miss_reason = static_cast<std::uint32_t>(refusal.miss().reason);
    outcome.error_code = static_cast<std::uint32_t>(ErrorCode::lease_lost);
  } else {
    outcome.error_code = static_cast<std::uint32_t>(refusal.error().code);
  }
}

// The child: tasks in, outcomes out, until the parent hangs up.
int serve(int socket, const std::string& control_path) {
  ClientOptions options;
  options.socket_path = control_path;
  auto client = Client::attach(options, replay_recipe());
  if (!client) {
    std::fprintf(stderr, "replay worker: %s\n", client.error().message().c_str());
    return 1;
  }
  ReplayWorker worker(std::move(*client));
  ReplayTask task;
  while (::recv(socket, &task, sizeof task, 0) == static_cast<ssize_t>(sizeof task)) {
    const ReplayOutcome outcome = worker.run(task);
    if (::send(socket, &outcome, sizeof outcome, MSG_NOSIGNAL) !=
        static_cast<ssize_t>(sizeof outcome)) {
      return 1;
    }
  }
  return 0;
}

}  // namespace

Recipe replay_recipe() {
  // 2 layers of K and V rows of 64 bytes: 256 bytes a token.
  return Recipe::make({.architecture = "llama",
                       .model_id = "replay",
                       .dtype = DType::f16,
                       .kv_heads = 2,
                       .key_dim = 16,
                       .value_dim = 16,
                       .layers = {0, 1}})
      .value();
}

ReplayOutcome ReplayWorker::run(const ReplayTask& task) {
  ReplayOutcome outcome;
  const std::string name = "session-" + std::to_string(task.session);
  const SessionId session = SessionId::from(name).value();
  if (task.known_tokens > 0) {
    const auto view = timed(outcome.resolve_ns, [&] {
      return client_.resolve(session, kEpoch, TokenCount{task.known_tokens});
    });
    if (view) {
      outcome.wrong_bytes = wrong_bytes_of(*view, name, kEpoch.value());
      outcome.reused_tokens = view->length().value();
    } else {
      outcome.miss_reason = static_cast<std::uint32_t>(view.error().reason);
    }
  }
  // Also where nothing is left to compute: the answer's tokens would be appended under this lease.
  auto context = timed(outcome.open_ns, [&] { return client_.open(session, kEpoch); });
  if (!context) {
    note(outcome, context.error());
    return outcome;
  }
  append(*context, task, name, outcome);
  // Waits for the answer: the next request of the session may come from another worker at once.
  if (const auto closed = context->close(); !closed && outcome.error_code == 0) {
    note(outcome, closed.error());
  }
  return outcome;
}

void ReplayWorker::append(Context& context, const ReplayTask& task, const std::string& name,
                          ReplayOutcome& outcome) {
  const TokenCount reused{outcome.reused_tokens};
  if (context.length() > reused) {
    if (const auto cut = context.truncate(reused); !cut) return note(outcome, cut.error());
  }
  const TokenCount more{task.tokens - outcome.reused_tokens};
  if (more == TokenCount{0}) return;
  auto writer = timed(outcome.append_ns, [&] { return context.append(more); });
  if (!writer) return note(outcome, writer.error());
  fill_tokens(*writer, name, kEpoch.value(), 0, more.value());
  if (const auto published = writer->publish(); !published) {
    return note(outcome, published.error());
  }
  outcome.computed_tokens = more.value();
}

ReplayProcess::ReplayProcess(const std::string& control_path)
    : process_([&](int socket) { return serve(socket, control_path); }) {}

std::expected<ReplayOutcome, Error> ReplayProcess::run(const ReplayTask& task) {
  ReplayOutcome outcome;
  if (::send(process_.socket(), &task, sizeof task, MSG_NOSIGNAL) ==
          static_cast<ssize_t>(sizeof task) &&
      ::recv(process_.socket(), &outcome, sizeof outcome, 0) ==
          static_cast<ssize_t>(sizeof outcome)) {
    return outcome;
  }
  return std::unexpected(Error{ErrorCode::system_error, "replay", "a worker", "it ended"});
}

}  // namespace hotkv::bench
