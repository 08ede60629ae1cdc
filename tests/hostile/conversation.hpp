#pragma once
// A conversation with one right frame of every type.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "tests/support/kv_worker.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {

// In this order they are a whole life of a client and of a context.
inline constexpr std::array kConversation{protocol::Type::hello,   protocol::Type::attach,
                                          protocol::Type::open,    protocol::Type::append,
                                          protocol::Type::explain, protocol::Type::truncate,
                                          protocol::Type::close,   protocol::Type::release};

// The right frame of a type; operations are of the session's epoch 1, in a generation that OPEN
// told.
[[nodiscard]] inline Bytes right_frame(protocol::Type type, const Recipe& recipe,
                                       std::string_view session, std::uint32_t generation) {
  using namespace protocol;
  constexpr std::uint64_t kRequest = 77;
  const ContextName name = context_name(session, 1);
  OpenOperation open{name, {}};
  std::ranges::copy(recipe.fingerprint(), open.fingerprint);
  ExplainOperation explain{name, {}, 0, static_cast<std::uint32_t>(LengthMatch::any)};
  std::ranges::copy(recipe.fingerprint(), explain.fingerprint);
  switch (type) {
    case Type::hello: return make_frame<HelloRequest>(type, kRequest, {{1, 1}});
    case Type::attach:
      return make_frame<AttachRequest>(
          type, kRequest,
          {{encode_recipe(recipe), static_cast<std::uint32_t>(Access::write), 0, 0}});
    case Type::open: return make_frame<OpenOperation>(type, kRequest, {open});
    case Type::append: return make_frame<AppendOperation>(type, kRequest, {{name, generation, 20}});
    case Type::truncate:
      return make_frame<TruncateOperation>(type, kRequest, {{name, generation, 0, 0, 0}});
    case Type::close: return make_frame<CloseOperation>(type, kRequest, {{name, generation, 0}});
    case Type::release: return make_frame<ReleaseOperation>(type, kRequest, {{name, 0, 0}});
    case Type::explain: return make_frame<ExplainOperation>(type, kRequest, {explain});
  }
  return {};
}

}  // namespace hotkv::testing
