#pragma once
// From what a command line names to a model and its tokenizer.

#include <expected>
#include <string>

#include "client/adapter/llama/tokenizer.hpp"
#include "client/adapter/llama/weights.hpp"

namespace hotkv::shard {

// `model` is the path of a checkpoint, or "seed:N" for a small model made from a number.
// Errors: Weights::from_checkpoint's; invalid_argument for a seed that is no number.
[[nodiscard]] std::expected<llama::Weights, Error> load_weights(const std::string& model);

// `tokenizer` is the path of a tokenizer file. Empty: tokVOCAB.bin beside the checkpoint, or
// numbers for a seeded model. Errors: Tokenizer's.
[[nodiscard]] std::expected<llama::Tokenizer, Error> load_tokenizer(const std::string& tokenizer,
                                                                    const std::string& model,
                                                                    std::uint32_t vocab_size);

}  // namespace hotkv::shard
