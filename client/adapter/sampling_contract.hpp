#pragma once
// How the tail picks the next token, as every shard and router must understand it.

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

#include "client/adapter/model_config.hpp"

namespace hotkv::adapter {

// What a request asks for. The defaults are greedy.
struct SamplingRequest {
  double temperature = 0;
  double top_p = 1;
  std::uint32_t top_k = 0;  // 0: all
};

// A way of sampling that is certified: after a crash, resumed from the same KV, it picks the same
// tokens. Only greedy is: it is a function of the logits alone. Anything with randomness would have
// to carry its generator's state across the crash; nothing here does, so it is refused.
class SamplingContract {
 public:
  [[nodiscard]] static SamplingContract greedy() { return SamplingContract(); }
  // Errors: invalid_argument naming what is not certified.
  [[nodiscard]] static std::expected<SamplingContract, Error> make(const SamplingRequest& request);
  // The form in which a contract travels: "greedy". Errors: invalid_argument for any other name.
  [[nodiscard]] static std::expected<SamplingContract, Error> from_name(std::string_view name);
  [[nodiscard]] std::string_view name() const { return "greedy"; }

  // The token of the largest of the logits [vocab]; the lowest id where several are equal. A NaN is
  // larger than nothing, so it is picked only if all are. Logits are not empty.
  [[nodiscard]] TokenId choose(std::span<const float> logits) const;

 private:
  SamplingContract() = default;
};

}  // namespace hotkv::adapter
