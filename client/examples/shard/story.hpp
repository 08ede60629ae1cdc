#pragma once
// The router of one sequence: asks the head for token after token, whoever dies meanwhile.

#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>

#include "client/adapter/llama/tokenizer.hpp"
#include "client/examples/shard/frame_client.hpp"
#include "client/examples/shard/message.hpp"
#include "client/examples/shard/transcript.hpp"

namespace hotkv::shard {

struct StoryOptions {
  std::filesystem::path head;            // where the head listens
  std::size_t steps = 200;               // tokens to be written in all, beside the prompt
  std::uint32_t context_tokens_max = 0;  // the model's; a longer story ends there
  bool prints_new_text_only = false;     // of a transcript that is gone on with
  bool is_key_new = false;            // no other story was ever written under the transcript's key
  std::chrono::milliseconds pace{0};  // from token to token, for people who watch
  std::chrono::milliseconds patience{30000};  // how long one token may take, interruptions included
};

// Text goes to stdout as it is written; what happens to the workers, to stderr.
class Story {
 public:
  Story(StoryOptions options, const llama::Tokenizer& tokenizer, Transcript transcript);

  // Writes until there are `steps` tokens, or the model ends the sequence, then gives the leases
  // back: the sequence stays cached for whoever goes on with it.
  // Refusals: what is no use to ask again for (a wrong request, a budget that does not suffice, an
  // epoch that was superseded), and deadline_exceeded after `patience`, with the last obstacle.
  [[nodiscard]] std::expected<void, Refusal> write();
  // {"written":…,"reused":…,"recomputed":…,"interruptions":…} so far, in tokens; `reused` by the
  // first step: what was cached from before.
  [[nodiscard]] std::string report() const;

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] bool is_ended() const;
  [[nodiscard]] std::expected<void, Refusal> write_tokens();
  [[nodiscard]] std::expected<adapter::Advance, Refusal> ask_once(Clock::time_point end);
  [[nodiscard]] std::expected<adapter::TokenId, Refusal> ask_until_answered();
  void note(const adapter::Advance& advance);
  void give_back();
  void print_text();
  void say(const std::string& what);
  void say_who();

  StoryOptions options_;
  const llama::Tokenizer* tokenizer_;
  Transcript transcript_;
  FrameClient head_;
  TokenCount cached_;    // of the transcript's tokens, as the workers last said
  bool is_sole_;         // what is cached under the key is of these tokens only
  std::size_t printed_;  // tokens whose text is out; the first has none
  bool is_one_screen_;
  bool is_line_open_ = false;                 // text since the last line end
  std::uint64_t reused_ = ~std::uint64_t{0};  // by the first token: what was there from before
  bool is_reused_final_ = false;
  std::uint64_t recomputed_ = 0;
  std::uint64_t interruptions_ = 0;
  bool is_waiting_ = false;
  bool is_who_unknown_ = true;
  std::string who_;  // the workers, as last said
};

}  // namespace hotkv::shard
