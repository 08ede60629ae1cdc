#pragma once
// What a router must not forget: which tokens a sequence has. Not its KV, which is in hotkvd.

#include <cstdint>
#include <expected>
#include <filesystem>
#include <fstream>
#include <vector>

#include <hotkv/client.hpp>
#include <hotkv/error.hpp>

#include "client/adapter/model_config.hpp"

namespace hotkv::shard {

// A sequence in a text file: a first line of JSON with session, epoch, model and prompt, then one
// line a token. A router that dies and comes back reads it and goes on; a line that was cut off
// counts as not written.
class Transcript {
 public:
  struct Beginning {
    ContextKey key;
    std::string model_id;
    std::vector<adapter::TokenId> prompt;
  };

  // Goes on with the file at `path` if there is one, whatever `beginning` says of key and prompt;
  // else makes it. An empty path keeps nothing.
  // Errors: system_error; invalid_argument for a file that is no transcript, or another model's.
  [[nodiscard]] static std::expected<Transcript, Error> open(const std::filesystem::path& path,
                                                             const Beginning& beginning);

  [[nodiscard]] const std::string& model_id() const { return beginning_.model_id; }
  [[nodiscard]] const ContextKey& key() const { return beginning_.key; }
  [[nodiscard]] const std::vector<adapter::TokenId>& prompt() const { return beginning_.prompt; }
  // Whether the file was there already, with this key and prompt.
  [[nodiscard]] bool is_continued() const { return is_continued_; }
  // The prompt, and all that was written.
  [[nodiscard]] const std::vector<adapter::TokenId>& tokens() const { return tokens_; }
  [[nodiscard]] std::size_t written() const { return tokens_.size() - beginning_.prompt.size(); }
  // Errors: system_error.
  [[nodiscard]] std::expected<void, Error> add(adapter::TokenId token);

 private:
  explicit Transcript(Beginning beginning)
      : beginning_(std::move(beginning)), tokens_(beginning_.prompt) {}
  [[nodiscard]] std::expected<void, Error> read(const std::string& text);

  std::filesystem::path path_;
  Beginning beginning_;
  std::vector<adapter::TokenId> tokens_;
  std::ofstream file_;
  bool is_continued_ = false;
};

}  // namespace hotkv::shard
