#include "client/adapter/sampling_contract.hpp"

#include <limits>

namespace hotkv::adapter {
namespace {

std::unexpected<Error> uncertified(std::string what) {
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "check sampling", std::move(what),
            "not certified; certified: greedy (temperature 0, top_p 1, top_k 0)"});
}

}  // namespace

std::expected<SamplingContract, Error> SamplingContract::make(const SamplingRequest& request) {
  // Written so that a NaN is refused too.
  if (!(request.temperature == 0)) {
    return uncertified("temperature " + std::to_string(request.temperature));
  }
  if (!(request.top_p == 1)) return uncertified("top_p " + std::to_string(request.top_p));
  if (request.top_k != 0) return uncertified("top_k " + std::to_string(request.top_k));
  return greedy();
}

std::expected<SamplingContract, Error> SamplingContract::from_name(std::string_view name) {
  if (name != greedy().name()) return uncertified("sampling \"" + std::string(name) + "\"");
  return greedy();
}

TokenId SamplingContract::choose(std::span<const float> logits) const {
  TokenId best = 0;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (std::size_t token = 0; token < logits.size(); ++token) {
    if (logits[token] > best_logit) {
      best = static_cast<TokenId>(token);
      best_logit = logits[token];
    }
  }
  return best;
}

}  // namespace hotkv::adapter
