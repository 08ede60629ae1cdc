#include "client/tools/bench/replay_worker.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <type_traits>
#include <utility>

#include "client/tools/bench/kv_pattern.hpp"

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

// Calls `visit(row, mark)` for each row of `tokens` tokens in one layer's piece.
template <class Byte, class Visit>
void each_row(std::span<Byte> rows, std::uint32_t tokens, RowMark mark, Visit visit) {
  const std::size_t row_bytes = rows.size() / tokens;
  for (std::uint32_t i = 0; i < tokens; ++i, ++mark.position) {
    visit(rows.subspan(i * row_bytes, row_bytes), mark);
  }
}

// The same for all rows of a View, or of a Writer whose first token is token `first` of the
// session.
template <class Rows, class Visit>
void each_row_of(Rows& rows, const std::string& session, TokenCount first, Visit visit) {
  for (std::uint32_t layer = rows.layers().first; layer <= rows.layers().last; ++layer) {
    std::uint32_t position = first.value();
    for (std::size_t piece = 0; piece < rows.piece_count(); ++piece) {
      const std::uint32_t tokens = rows.piece_tokens(piece).value();
      RowMark mark{session, kEpoch.value(), position, layer, Half::keys};
      each_row(rows.keys(layer, piece), tokens, mark, visit);
      mark.half = Half::values;
      each_row(rows.values(layer, piece), tokens, mark, visit);
      position += tokens;
    }
  }
}

std::uint64_t wrong_bytes_of(const View& view, const std::string& session) {
  std::uint64_t wrong = 0;
  each_row_of(view, session, TokenCount{0},
              [&](std::span<const std::byte> row, const RowMark& mark) {
                wrong += wrong_bytes(row, mark);
              });
  return wrong;
}

void fill(Writer& writer, const std::string& session) {
  each_row_of(writer, session, writer.position(), fill_row);
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
      outcome.wrong_bytes = wrong_bytes_of(*view, name);
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
  fill(*writer, name);
  if (const auto published = writer->publish(); !published) {
    return note(outcome, published.error());
  }
  outcome.computed_tokens = more.value();
}

ReplayProcess::ReplayProcess(const std::string& control_path) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return;
  socket_.reset(ends[0]);
  UniqueFd child_end(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  socket_.reset();
  ::_exit(serve(child_end.get(), control_path));
}

ReplayProcess::ReplayProcess(ReplayProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), socket_(std::move(other.socket_)) {}

ReplayProcess::~ReplayProcess() {
  // Closing alone would not be seen: workers that were forked later hold this end, too.
  if (socket_) ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
  if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
}

std::expected<ReplayOutcome, Error> ReplayProcess::run(const ReplayTask& task) {
  ReplayOutcome outcome;
  if (::send(socket_.get(), &task, sizeof task, MSG_NOSIGNAL) ==
          static_cast<ssize_t>(sizeof task) &&
      ::recv(socket_.get(), &outcome, sizeof outcome, 0) == static_cast<ssize_t>(sizeof outcome)) {
    return outcome;
  }
  return std::unexpected(Error{ErrorCode::system_error, "replay", "a worker", "it ended"});
}

}  // namespace hotkv::bench
