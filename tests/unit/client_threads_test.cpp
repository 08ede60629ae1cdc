// Many threads at once: readers, writers, truncates, misses and a daemon that ends generations.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>

#include "tests/support/fake_daemon.hpp"

namespace hotkv {
namespace {

using fake::Bytes;
using fake::FakeDaemon;
using fake::session_id;

constexpr std::uint32_t kChunk = 16;

// Every row of `view` is the one pattern() has for it.
bool is_whole(const View& view) {
  for (const std::uint32_t layer : {3u, 4u}) {
    std::uint32_t token = 0;
    for (std::size_t piece = 0; piece < view.piece_count(); ++piece) {
      const auto keys = view.keys(layer, piece);
      for (std::size_t at = 0; at < keys.size(); at += 16, ++token) {
        if (keys[at] != FakeDaemon::pattern(token, layer, true) || keys[at + 15] != keys[at]) {
          return false;
        }
      }
    }
    if (token != view.length().value()) return false;
  }
  return true;
}

bool append_some(Context& context, std::uint32_t tokens) {
  auto writer = context.append(TokenCount{tokens});
  if (!writer) return false;
  for (const std::uint32_t layer : {3u, 4u}) {
    Bytes keys;
    Bytes values;
    for (std::uint32_t i = 0; i < tokens; ++i) {
      const std::uint32_t token = writer->position().value() + i;
      keys.insert(keys.end(), 16, FakeDaemon::pattern(token, layer, true));
      values.insert(values.end(), 8, FakeDaemon::pattern(token, layer, false));
    }
    if (!writer->write_keys(layer, TokenCount{0}, keys) ||
        !writer->write_values(layer, TokenCount{0}, values)) {
      return false;
    }
  }
  return writer->publish().has_value();
}

TEST(Threads, ReadersSeeWholeTokensWhileWritersAppendAndTruncate) {
  fake::FakeDaemonOptions options;
  options.arena_bytes = std::uint64_t{256} << 20;
  FakeDaemon daemon(options);
  Client client = daemon.attach();
  constexpr std::size_t kWriters = 3;
  std::vector<SessionId> sessions;
  for (std::size_t i = 0; i < kWriters; ++i)
    sessions.push_back(session_id("s" + std::to_string(i)));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::atomic<int> hits{0};

  std::vector<std::thread> writers;
  for (const SessionId& session : sessions) {
    writers.emplace_back([&client, &wrong, session] {
      auto context = client.open(session, Epoch{1});
      if (!context) {
        ++wrong;
        return;
      }
      for (int round = 0; round < 30; ++round) {
        for (int i = 0; i < 25; ++i) {
          if (!append_some(*context, 1 + static_cast<std::uint32_t>(i % 7))) ++wrong;
        }
        // To a chunk's edge: this daemon copies no tails, and pinned tokens must not be written
        // over.
        const std::uint32_t to = context->length().value() / 2 / kChunk * kChunk;
        if (!context->truncate(TokenCount{to})) ++wrong;
      }
    });
  }
  std::vector<std::thread> readers;
  for (std::size_t t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      for (std::size_t i = t; !stop; ++i) {
        const auto view = client.get(sessions[i % kWriters], Epoch{1});
        if (!view) continue;
        ++hits;
        if (!is_whole(*view)) ++wrong;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 0);
  EXPECT_EQ(daemon.pins_held(), 0u);
}

TEST(Threads, OpensClosesAndMissesOfManyThreadsDoNotMixUp) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const SessionId mine = session_id("mine " + std::to_string(t));
      for (int i = 0; i < 100; ++i) {
        const auto context = client.open(mine, Epoch{1});
        if (!context || context->session() != mine) ++wrong;
        const SessionId missing = session_id("missing " + std::to_string(t));
        const auto miss = client.resolve(missing, Epoch{t}, TokenCount{t});
        if (miss || miss.error().session != missing || miss.error().epoch != Epoch{t}) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(daemon.received(protocol::Type::open), 400u);
}

TEST(Threads, OneContextOpenedAndDroppedByManyIsNeverLostToAHolder) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  const SessionId session = session_id("shared");
  std::atomic<int> lost{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        auto context = client.open(session, Epoch{1});
        // While this share lives, no share that another thread drops may give the lease back.
        if (!context || !context->reserve(TokenCount{1}).has_value()) ++lost;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lost, 0);
}

TEST(Threads, AHangUpAmidTrafficEndsEveryCallSoon) {
  FakeDaemon daemon;
  Client client = daemon.attach();
  std::atomic<int> ended{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const SessionId session = session_id("s" + std::to_string(t));
      for (;;) {
        const auto context = client.open(session, Epoch{1});
        if (context) continue;
        if (context.error().is(ErrorCode::daemon_unavailable)) ++ended;
        return;
      }
    });
  }
  daemon.wait_for(protocol::Type::open, 50);
  daemon.die();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, 4);
}

}  // namespace
}  // namespace hotkv
