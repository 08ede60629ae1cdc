#include "client/examples/shard/story.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

namespace hotkv::shard {
namespace {

using adapter::Advance;
using adapter::TokenId;

// Between two questions to a worker that is not there.
constexpr std::chrono::milliseconds kAskAgainAfter{50};
constexpr std::chrono::seconds kGiveBackDeadline{5};
constexpr std::chrono::seconds kWhoDeadline{5};

// Whether text and messages go to one place: then a message begins a line of its own.
bool is_one_screen() {
  struct stat out, err;
  return ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 &&
         out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

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

}  // namespace

Story::Story(StoryOptions options, const llama::Tokenizer& tokenizer, Transcript transcript)
    : options_(std::move(options)),
      tokenizer_(&tokenizer),
      transcript_(std::move(transcript)),
      head_(options_.head),
      // A transcript without a token is no proof that its key was ever used for it.
      is_sole_(transcript_.is_continued() ? transcript_.written() > 0 : options_.is_key_new),
      printed_(options_.prints_new_text_only ? std::max<std::size_t>(transcript_.tokens().size(), 1)
                                             : 1),
      is_one_screen_(is_one_screen()) {
  // The last token written was sampled, not run: nobody has cached it yet.
  if (transcript_.written() > 0) {
    cached_ = TokenCount{static_cast<std::uint32_t>(transcript_.tokens().size() - 1)};
  }
}

std::expected<void, Refusal> Story::write() {
  print_text();
  auto written = write_tokens();
  give_back();
  if (is_line_open_) std::printf("\n");
  std::fflush(stdout);
  is_line_open_ = false;
  const std::uint64_t reused = is_reused_final_ ? reused_ : 0;
  say(std::to_string(transcript_.written()) + " tokens written; reused=" + std::to_string(reused) +
      " recomputed=" + std::to_string(recomputed_) +
      " interruptions=" + std::to_string(interruptions_));
  return written;
}

std::string Story::report() const {
  return "{\"written\":" + std::to_string(transcript_.written()) +
         ",\"reused\":" + std::to_string(is_reused_final_ ? reused_ : 0) +
         ",\"recomputed\":" + std::to_string(recomputed_) +
         ",\"interruptions\":" + std::to_string(interruptions_) + "}";
}

bool Story::is_ended() const {
  if (transcript_.written() >= options_.steps) return true;
  if (transcript_.tokens().size() > options_.context_tokens_max) return true;
  if (transcript_.written() == 0) return false;
  const TokenId last = transcript_.tokens().back();
  return last == llama::Tokenizer::kBegin || last == llama::Tokenizer::kEnd;
}

std::expected<void, Refusal> Story::write_tokens() {
  while (!is_ended()) {
    const auto token = ask_until_answered();
    if (!token) return std::unexpected(token.error());
    if (auto added = transcript_.add(*token); !added) return std::unexpected(added.error());
    print_text();
    if (!is_ended()) std::this_thread::sleep_for(options_.pace);
  }
  return {};
}

std::expected<Advance, Refusal> Story::ask_once(Clock::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
  const auto reply = head_.exchange(
      encode(AdvanceMessage{transcript_.model_id(),
                            {{transcript_.key(), transcript_.tokens(), cached_, is_sole_}}}),
      std::max(left, kAskAgainAfter));
  if (!reply) return std::unexpected(Refusal(reply.error()));
  auto results = decode_advances(*reply);
  if (!results) return std::unexpected(results.error());
  if (results->size() != 1) {
    return std::unexpected(Refusal(
        Error{ErrorCode::protocol_error, "advance", options_.head.string(), "not one result"}));
  }
  return std::move(results->front());
}

// What a reply says of the cache, be it with a token or without.
void Story::note(const Advance& advance) {
  cached_ = advance.cached;
  // Every shard was rolled back to where these tokens begin: what lies behind is of them, too.
  if (cached_ > TokenCount{0}) is_sole_ = true;
  recomputed_ += advance.recomputed.value();
  // Until there is a token, a further refusal can have made it less.
  if (!is_reused_final_) reused_ = std::min(reused_, std::uint64_t{advance.reused.value()});
  is_reused_final_ = is_reused_final_ || advance.token;
}

std::expected<TokenId, Refusal> Story::ask_until_answered() {
  const auto end = Clock::now() + options_.patience;
  std::set<std::string> said;  // each obstacle once, however often it is met
  const auto say_once = [&](const std::string& what) {
    if (said.insert(what).second) say(what);
  };
  for (;;) {
    const auto answer = ask_once(end);
    if (answer) {
      note(*answer);
      if (answer->why) say_once(answer->why->message());
    }
    const std::optional<Refusal> refusal = answer ? answer->refusal : answer.error();
    if (!refusal) {
      if (!said.empty() || answer->recomputed > TokenCount{0}) {
        say("goes on: " + std::to_string(answer->reused.value()) + " tokens reused, " +
            std::to_string(answer->recomputed.value()) + " recomputed");
      }
      is_waiting_ = false;
      if (is_who_unknown_ || !said.empty()) say_who();
      return *answer->token;
    }
    if (!may_pass(*refusal)) return std::unexpected(*refusal);
    if (!is_waiting_) ++interruptions_;
    is_waiting_ = true;
    say_once(refusal->message() + "; waiting");
    if (Clock::now() >= end) {
      return std::unexpected(
          Refusal(Error{ErrorCode::deadline_exceeded, "advance",
                        transcript_.key().session.escaped(), refusal->message()}));
    }
    std::this_thread::sleep_for(kAskAgainAfter);
  }
}

void Story::give_back() {
  const auto reply =
      head_.exchange(encode(GiveBackMessage{{transcript_.key()}}), kGiveBackDeadline);
  const auto done = reply ? decode_done(*reply) : std::unexpected(Refusal(reply.error()));
  if (!done) say("the leases were not given back: " + done.error().message());
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
  if (is_line_open_ && is_one_screen_) {
    std::fputc('\n', stderr);
    is_line_open_ = false;
  }
  std::fprintf(stderr, "  [story] %s\n", what.c_str());
}

void Story::say_who() {
  is_who_unknown_ = false;  // asked once a time that it may have changed, not after every token
  const auto reply = head_.exchange(encode(WhoMessage{}), kWhoDeadline);
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
