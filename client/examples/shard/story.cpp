#include "client/examples/shard/story.hpp"

#include <unistd.h>

#include <cstdio>
#include <thread>

namespace hotkv::shard {
namespace {

using adapter::Advance;
using Clock = std::chrono::steady_clock;

// Between two questions to a worker that is not there.
constexpr std::chrono::milliseconds kAskAgainAfter{50};

// Whether the same question can be answered later: the rest says that it is wrong.
bool may_pass(const Refusal& refusal) {
  if (refusal.is_miss()) return !refusal.is(MissReason::superseded_epoch);
  switch (refusal.error().code) {
    case ErrorCode::system_error:
    case ErrorCode::deadline_exceeded:
    case ErrorCode::daemon_unavailable:
    case ErrorCode::lease_lost:
    case ErrorCode::length_mismatch:
    case ErrorCode::session_busy:
    case ErrorCode::memory_unavailable:
    case ErrorCode::shutting_down:
    case ErrorCode::too_many_waiting: return true;
    default: return false;
  }
}

Error as_error(const Refusal& refusal, const ContextKey& key) {
  if (!refusal.is_miss()) return refusal.error();
  return {ErrorCode::daemon_unavailable, "advance", key.session.escaped(), refusal.message()};
}

}  // namespace

Story::Story(StoryOptions options, const llama::Tokenizer& tokenizer, Transcript transcript)
    : options_(std::move(options)),
      tokenizer_(&tokenizer),
      transcript_(std::move(transcript)),
      head_(options_.head) {}

std::expected<void, Error> Story::write() {
  print_text();
  while (transcript_.written() < options_.steps &&
         transcript_.tokens().size() < options_.context_tokens_max) {
    const auto next = ask_until_answered();
    if (!next) return std::unexpected(next.error());
    if (auto added = transcript_.add(next->token); !added) return added;
    print_text();
    if (next->token == llama::Tokenizer::kBegin || next->token == llama::Tokenizer::kEnd) break;
    if (options_.pace.count() > 0) std::this_thread::sleep_for(options_.pace);
  }
  const std::vector<ContextKey> keys{transcript_.key()};
  if (const auto reply = head_.exchange(encode(GiveBackMessage{keys}), options_.patience); !reply) {
    say("the leases were not given back: " + reply.error().message());
  }
  if (is_line_open_) std::printf("\n");
  std::fflush(stdout);
  is_line_open_ = false;
  say(std::to_string(transcript_.written()) + " tokens written; reused=" +
      std::to_string(reused_.value_or(0)) + " recomputed=" + std::to_string(recomputed_) +
      " interruptions=" + std::to_string(interruptions_));
  return {};
}

std::expected<Advance, Refusal> Story::ask_once() {
  AdvanceMessage message{transcript_.model_id(), {}};
  // The last token written was sampled, not yet run: it is the one that nobody has cached.
  const std::size_t cached = transcript_.written() == 0 ? 0 : transcript_.tokens().size() - 1;
  message.batch.push_back(
      {transcript_.key(), transcript_.tokens(), TokenCount{static_cast<std::uint32_t>(cached)}});
  const auto reply = head_.exchange(encode(message), options_.patience);
  if (!reply) return std::unexpected(Refusal(reply.error()));
  auto results = decode_advances(*reply);
  if (!results) return std::unexpected(results.error());
  if (results->size() != 1) {
    return std::unexpected(Refusal(
        Error{ErrorCode::protocol_error, "advance", options_.head.string(), "not one result"}));
  }
  return std::move(results->front());
}

std::expected<Advance, Error> Story::ask_until_answered() {
  const auto end = Clock::now() + options_.patience;
  std::string said;
  for (;;) {
    auto next = ask_once();
    if (next) {
      if (!reused_) {
        reused_ = next->reused.value();
        say_who();
      }
      recomputed_ += next->recomputed.value();
      if (!said.empty() || next->why || next->recomputed > TokenCount{0}) {
        if (next->why) say(next->why->message());
        say("goes on: " + std::to_string(next->reused.value()) + " tokens reused, " +
            std::to_string(next->recomputed.value()) + " recomputed");
        say_who();
      }
      return std::move(*next);
    }
    const Error error = as_error(next.error(), transcript_.key());
    if (!may_pass(next.error())) return std::unexpected(error);
    // Each obstacle is said once, however often it is met.
    if (said.empty()) ++interruptions_;
    if (error.message() != said) say(error.message() + "; waiting");
    said = error.message();
    if (Clock::now() >= end) {
      return std::unexpected(Error{ErrorCode::deadline_exceeded, "advance",
                                   transcript_.key().session.escaped(), said});
    }
    std::this_thread::sleep_for(kAskAgainAfter);
  }
}

void Story::print_text() {
  const auto& tokens = transcript_.tokens();
  for (; printed_ < tokens.size(); ++printed_) {
    const std::string text = tokenizer_->decode(tokens[printed_ - 1], tokens[printed_]);
    if (text.empty()) continue;
    std::fwrite(text.data(), 1, text.size(), stdout);
    is_line_open_ = !text.ends_with('\n');
  }
  std::fflush(stdout);
}

void Story::say(const std::string& what) {
  // On a terminal both streams share the screen: a message begins a line of its own.
  if (is_line_open_ && ::isatty(STDOUT_FILENO) && ::isatty(STDERR_FILENO)) {
    std::fputc('\n', stderr);
    is_line_open_ = false;
  }
  std::fprintf(stderr, "  [story] %s\n", what.c_str());
}

void Story::say_who() {
  const auto reply = head_.exchange(encode(WhoMessage{}), options_.patience);
  if (!reply) return;  // the next step says what is wrong
  const auto chain = decode_chain(*reply);
  if (!chain) return;
  std::string who;
  for (const ShardIdentity& shard : *chain) {
    who += (who.empty() ? "" : ", ") + std::string("layers ") + std::to_string(shard.layers.first) +
           "-" + std::to_string(shard.layers.last) + " in pid " + std::to_string(shard.pid);
  }
  if (who != who_) say(who);
  who_ = who;
}

}  // namespace hotkv::shard
