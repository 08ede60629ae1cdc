#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>

#include <hotkv/client.hpp>

#include "client/library/copy_rows.hpp"
#include "tests/support/fake_daemon.hpp"
#include "tests/support/fake_rows.hpp"

namespace hotkv {
namespace {

using fake::append_tokens;
using fake::Bytes;
using fake::expect_tokens;
using fake::FakeDaemon;
using fake::kA;
using fake::rows_of;
using fake::write_all;

TEST(Writer, RowsThatDoNotFitAreRefusedAndNothingIsWritten) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 10);
  auto writer = context.append(TokenCount{20});
  ASSERT_TRUE(writer.has_value());
  const auto refused = [&](std::uint32_t layer, std::uint32_t first, std::size_t bytes) {
    const auto written = writer->write_keys(layer, TokenCount{first}, Bytes(bytes));
    return !written && written.error().code == ErrorCode::invalid_argument;
  };
  EXPECT_TRUE(refused(2, 0, 16));
  EXPECT_TRUE(refused(5, 0, 16));
  EXPECT_TRUE(refused(3, 0, 15)) << "no whole row";
  EXPECT_TRUE(refused(3, 0, 21 * 16));
  EXPECT_TRUE(refused(3, 20, 16));
  EXPECT_TRUE(refused(3, 0xffff'ffff, 16));
  EXPECT_FALSE(refused(3, 19, 16));
  EXPECT_FALSE(refused(3, 20, 0));
  ASSERT_TRUE(writer->publish(TokenCount{2}).has_value());
  EXPECT_TRUE(refused(3, 1, 16)) << "readers see it already";
  EXPECT_FALSE(refused(3, 2, 16));
}

TEST(Writer, ItsPiecesAreTheRoomInPlace) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 10);
  auto writer = context.append(TokenCount{30});
  ASSERT_TRUE(writer.has_value());
  EXPECT_EQ(writer->position(), TokenCount{10});
  ASSERT_EQ(writer->piece_count(), 3u);
  std::uint32_t token = 10;
  for (std::size_t piece = 0; piece < 3; ++piece) {
    const std::uint32_t tokens = writer->piece_tokens(piece).value();
    EXPECT_EQ(tokens, (std::array{6u, 16u, 8u}[piece]));
    for (const std::uint32_t layer : {3u, 4u}) {
      ASSERT_EQ(writer->keys(layer, piece).size(), tokens * 16);
      std::ranges::copy(rows_of(token, tokens, layer, true), writer->keys(layer, piece).begin());
      std::ranges::copy(rows_of(token, tokens, layer, false), writer->values(layer, piece).begin());
    }
    token += tokens;
  }
  EXPECT_TRUE(writer->keys(3, 3).empty());
  EXPECT_TRUE(writer->keys(7, 0).empty());
  ASSERT_TRUE(writer->publish().has_value());
  expect_tokens(client, kA, 40);
}

TEST(Writer, OfTwoWritersTheFirstToPublishWins) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  auto first = context.append(TokenCount{3});
  auto second = context.append(TokenCount{4});
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_EQ(second->publish(), TokenCount{4});
  EXPECT_EQ(first->publish().error().code, ErrorCode::length_mismatch);
}

TEST(Writer, AGenerationThatEndedIsNeverPublishedTo) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  append_tokens(context, 3);
  auto writer = context.append(TokenCount{2});
  ASSERT_TRUE(writer.has_value());
  EXPECT_EQ(daemon.pins_held(), 1u) << "a writer pins what it writes to";
  daemon.end_generation(kA);
  write_all(*writer);
  EXPECT_EQ(writer->publish().error().code, ErrorCode::lease_lost);
  EXPECT_EQ(client.get(kA, Epoch{1})->length(), TokenCount{3});
  EXPECT_TRUE(context.append(TokenCount{1}).error().is(ErrorCode::lease_lost));
  EXPECT_EQ(context.length(), TokenCount{3});
  EXPECT_EQ(context.granted(), TokenCount{0});
  daemon.retire(kA, MissReason::evicted_lru);
  EXPECT_TRUE(context.append(TokenCount{1}).error().is(MissReason::evicted_lru));
  EXPECT_TRUE(context.truncate(TokenCount{0}).error().is(MissReason::evicted_lru));
}

TEST(Writer, LargeRowsGoByStreamingStoresAndArriveWhole) {
  fake::FakeDaemonOptions options;
  options.chunk_tokens = 256;
  FakeDaemon daemon(options);
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  const auto tokens = static_cast<std::uint32_t>(client::kStreamingBytesMin / 8 + 7);
  append_tokens(context, 5);
  append_tokens(context, tokens - 5);
  expect_tokens(client, kA, tokens);
}

TEST(CopyRows, CopiesAnySizeAtAnyOffsetEitherWay) {
  Bytes rows(1000);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::byte>(i * 7 + 1);
  for (const bool streaming : {false, true}) {
    for (std::size_t offset = 0; offset < 70; ++offset) {
      for (const std::size_t size : {0u, 1u, 15u, 63u, 64u, 65u, 129u, 800u}) {
        Bytes to(1000);
        client::copy_rows(std::span(to).subspan(offset, size), std::span(rows).first(size),
                          streaming);
        client::finish_streaming();
        Bytes expected(1000);
        std::copy_n(rows.begin(), size, expected.begin() + static_cast<std::ptrdiff_t>(offset));
        ASSERT_EQ(to, expected) << offset << " " << size << " " << streaming;
      }
    }
  }
}

// Faults of this thread that found the page in memory but not in this process's tables.
long minor_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt;
}

TEST(Writer, WhatIsGrantedIsPresentBeforeTheFirstStore) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's own memory faults too";
#endif
  void* probe = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  const bool can_populate = ::madvise(probe, 4096, MADV_POPULATE_WRITE) == 0;
  ::munmap(probe, 4096);
  if (!can_populate) GTEST_SKIP() << "this kernel cannot populate a mapping";
  FakeDaemon daemon;
  Client client = daemon.attach();
  Context context = *client.open(kA, Epoch{1});
  auto writer = context.append(TokenCount{256 * 16});  // 256 chunks of a page each
  ASSERT_TRUE(writer.has_value());
  const long before = minor_faults();
  for (std::size_t piece = 0; piece < writer->piece_count(); ++piece) {
    writer->keys(3, piece)[0] = std::byte{1};
  }
  EXPECT_LT(minor_faults() - before, 64);
}

}  // namespace
}  // namespace hotkv
