#include "client/tools/bench/soak_worker.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>

#include "client/tools/bench/kv_rows.hpp"
#include "client/tools/bench/replay_worker.hpp"

namespace hotkv::bench {
namespace {

constexpr std::uint32_t kPrefillTokens = 512;  // of one sequence in one step
constexpr std::uint32_t kDraftTokens = 4;
// What a rejected draft is written with: a byte of it that is seen later is a wrong one.
constexpr std::uint32_t kDraftVersion = 1;

template <class Call>
auto timed(LatencyHistogram& histogram, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = call();
  histogram.add(static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count()));
  return result;
}

template <class Frame>
bool send_to(int socket, const Frame& frame) {
  return ::send(socket, &frame, sizeof frame, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof frame);
}

}  // namespace

void SoakTotals::add(const SoakTotals& other) {
  tasks += other.tasks;
  interrupted += other.interrupted;
  steps += other.steps;
  tokens_reused += other.tokens_reused;
  tokens_prefilled += other.tokens_prefilled;
  tokens_decoded += other.tokens_decoded;
  tokens_rolled_back += other.tokens_rolled_back;
  bytes_checked += other.bytes_checked;
  wrong_bytes += other.wrong_bytes;
  for (std::size_t i = 0; i < misses.size(); ++i) misses[i] += other.misses[i];
  for (std::size_t i = 0; i < refusals.size(); ++i) refusals[i] += other.refusals[i];
  resolve.add(other.resolve);
  step.add(other.step);
}

std::uint32_t SoakWorker::Sequence::tokens_of_step() const {
  if (length < task.prompt_tokens) return std::min(kPrefillTokens, task.prompt_tokens - length);
  return std::min(kDraftTokens, end() - length);
}

std::optional<SoakDone> SoakWorker::start(const SoakTask& task) {
  ++totals_.tasks;
  const std::string name = "session-" + std::to_string(task.session);
  const auto refused = [&](const Refusal& refusal) {
    note(refusal);
    ++totals_.interrupted;
    return SoakDone{task.session, task.epoch, 0};
  };
  const std::uint32_t reused = task.known_tokens > 0 ? reuse(task, name) : 0;
  auto context = client_.open(SessionId::from(name).value(), Epoch{task.epoch});
  if (!context) return refused(context.error());
  if (context->length() > TokenCount{reused}) {
    if (const auto cut = context->truncate(TokenCount{reused}); !cut) return refused(cut.error());
  }
  // It can have been evicted since the look.
  const std::uint32_t length = context->length().value();
  sequences_.push_back({task, name, std::move(*context), length});
  return std::nullopt;
}

std::uint32_t SoakWorker::reuse(const SoakTask& task, const std::string& name) {
  const auto view = timed(totals_.resolve, [&] {
    return client_.resolve(SessionId::from(name).value(), Epoch{task.epoch},
                           TokenCount{task.known_tokens});
  });
  if (!view) {
    ++totals_.misses[static_cast<std::size_t>(view.error().reason)];
    return 0;
  }
  totals_.wrong_bytes += wrong_bytes_of(*view, name, task.epoch);
  totals_.bytes_checked += view->length().value() * client_.recipe().bytes_per_token();
  totals_.tokens_reused += view->length().value();
  return view->length().value();
}

std::vector<SoakDone> SoakWorker::step() {
  std::vector<AppendRequest> requests;
  for (Sequence& sequence : sequences_) {
    requests.push_back({&sequence.context, TokenCount{sequence.tokens_of_step()}});
  }
  auto writers = timed(totals_.step, [&] { return client_.append(requests); });
  ++totals_.steps;
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    write(sequences_[i], writers[i], requests[i].tokens.value());
  }
  writers.clear();
  reject_drafts();
  std::vector<SoakDone> done;
  for (Sequence& sequence : sequences_) {
    if (sequence.is_lost || sequence.length == sequence.end()) done.push_back(finish(sequence));
  }
  std::erase_if(sequences_, [](const Sequence& sequence) {
    return sequence.is_lost || sequence.length == sequence.end();
  });
  return done;
}

void SoakWorker::write(Sequence& sequence, std::expected<Writer, Refusal>& writer,
                       std::uint32_t tokens) {
  if (!writer) return lose(sequence, writer.error());
  const bool is_prefill = sequence.length < sequence.task.prompt_tokens;
  // 0, 1, 2 or 3 of four drafts, in turn; a sequence always gets on.
  sequence.rejected = is_prefill ? 0 : std::min(sequence.steps++ % kDraftTokens, tokens - 1);
  const std::uint32_t accepted = tokens - sequence.rejected;
  fill_tokens(*writer, sequence.name, sequence.task.epoch, 0, accepted);
  fill_tokens(*writer, sequence.name, sequence.task.epoch, accepted, tokens, kDraftVersion);
  if (const auto published = writer->publish(); !published) {
    return lose(sequence, Refusal(published.error()));
  }
  sequence.length += accepted;
  (is_prefill ? totals_.tokens_prefilled : totals_.tokens_decoded) += accepted;
}

void SoakWorker::reject_drafts() {
  std::vector<TruncateRequest> requests;
  std::vector<Sequence*> of_request;
  for (Sequence& sequence : sequences_) {
    if (sequence.is_lost || sequence.rejected == 0) continue;
    requests.push_back({&sequence.context, TokenCount{sequence.length}});
    of_request.push_back(&sequence);
    totals_.tokens_rolled_back += std::exchange(sequence.rejected, 0);
  }
  const auto results = client_.truncate(requests);
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) lose(*of_request[i], results[i].error());
  }
}

SoakDone SoakWorker::finish(Sequence& sequence) {
  SoakDone done{sequence.task.session, sequence.task.epoch, 0};
  if (sequence.is_lost) return done;
  check(sequence);
  // Waits for the answer: another worker may go on with the session at once.
  const auto ended = sequence.task.release ? sequence.context.release() : sequence.context.close();
  if (!ended) {
    note(ended.error());
  } else if (!sequence.task.release) {
    done.tokens = sequence.length;
  }
  return done;
}

void SoakWorker::check(const Sequence& sequence) {
  const auto view = timed(totals_.resolve, [&] {
    return client_.resolve(sequence.context.session(), sequence.context.epoch(),
                           TokenCount{sequence.length});
  });
  if (!view) {
    ++totals_.misses[static_cast<std::size_t>(view.error().reason)];
    return;
  }
  totals_.wrong_bytes += wrong_bytes_of(*view, sequence.name, sequence.task.epoch);
  totals_.bytes_checked += view->length().value() * client_.recipe().bytes_per_token();
}

void SoakWorker::lose(Sequence& sequence, const Refusal& refusal) {
  if (std::exchange(sequence.is_lost, true)) return;
  ++totals_.interrupted;
  note(refusal);
}

void SoakWorker::note(const Refusal& refusal) {
  if (refusal.is_miss()) {
    ++totals_.misses[static_cast<std::size_t>(refusal.miss().reason)];
  } else {
    ++totals_.refusals[static_cast<std::size_t>(refusal.error().code)];
  }
}

int serve_soak(int socket, const std::string& control_path) {
  ClientOptions options;
  options.socket_path = control_path;
  auto client = Client::attach(options, replay_recipe());
  if (!client) {
    std::fprintf(stderr, "soak worker: %s\n", client.error().message().c_str());
    return 1;
  }
  SoakWorker worker(std::move(*client));
  bool is_ending = false;
  while (!is_ending || !worker.is_idle()) {
    if (!is_ending && worker.has_room()) {
      SoakTask task;
      const ssize_t received =
          ::recv(socket, &task, sizeof task, worker.is_idle() ? 0 : MSG_DONTWAIT);
      if (received == static_cast<ssize_t>(sizeof task)) {
        const auto over = worker.start(task);
        if (over && !send_to(socket, *over)) return 1;
        continue;  // as many as there are before the next step
      }
      is_ending = received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
      if (worker.is_idle()) continue;
    }
    for (const SoakDone& done : worker.step()) {
      if (!send_to(socket, done)) return 1;
    }
  }
  return send_to(socket, worker.totals()) ? 0 : 1;
}

}  // namespace hotkv::bench
