#pragma once
// Writing and comparing the rows of FakeShard::pattern through the client library.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"

namespace hotkv::fake {

inline const SessionId kA = session_id("a");
inline const SessionId kB = session_id("b");

// Rows of one layer for tokens [first, first + tokens).
inline Bytes rows_of(std::uint32_t first, std::uint32_t tokens, std::uint32_t layer, bool is_key) {
  Bytes rows;
  for (std::uint32_t token = first; token < first + tokens; ++token) {
    rows.insert(rows.end(), is_key ? 16 : 8, FakeDaemon::pattern(token, layer, is_key));
  }
  return rows;
}

// Fills every layer of a writer.
inline void write_all(Writer& writer) {
  const std::uint32_t first = writer.position().value();
  const std::uint32_t tokens = writer.size().value();
  for (const std::uint32_t layer : {3u, 4u}) {
    const auto keys = writer.write_keys(layer, TokenCount{0}, rows_of(first, tokens, layer, true));
    ASSERT_TRUE(keys.has_value()) << keys.error().message();
    ASSERT_TRUE(writer.write_values(layer, TokenCount{0}, rows_of(first, tokens, layer, false))
                    .has_value());
  }
}

// Appends and publishes `tokens` tokens.
inline void append_tokens(Context& context, std::uint32_t tokens) {
  auto writer = context.append(TokenCount{tokens});
  ASSERT_TRUE(writer.has_value()) << writer.error().message();
  write_all(*writer);
  ASSERT_TRUE(writer->publish().has_value());
}

// A resolve of exactly `tokens` tokens hits and shows the pattern.
inline void expect_tokens(const Client& client, const SessionId& session, std::uint32_t tokens) {
  const auto view = client.resolve(session, Epoch{1}, TokenCount{tokens});
  ASSERT_TRUE(view.has_value()) << view.error().message();
  for (const std::uint32_t layer : {3u, 4u}) {
    Bytes keys(tokens * 16);
    Bytes values(tokens * 8);
    view->gather_keys(layer, keys);
    view->gather_values(layer, values);
    EXPECT_EQ(keys, rows_of(0, tokens, layer, true));
    EXPECT_EQ(values, rows_of(0, tokens, layer, false));
  }
}

}  // namespace hotkv::fake
