// Kept files of which one word is another: each field of the header and of every table, in turn,
// under a real daemon that takes them over.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "shared/layout.hpp"
#include "tests/integration/restarting.hpp"
#include "tests/support/sanitized.hpp"

namespace hotkv::testing {
namespace {

// A word of 8 bytes in the tables file, and what it belongs to.
struct Word {
  std::string name;
  std::uint64_t offset;
  bool is_of_a_table;      // else of the header
  bool is_of_one_context;  // of "b"
};

class DamagedTables : public Restart {
 protected:
  const std::map<std::string, std::uint32_t> lengths_{{"a", 20}, {"b", 40}, {"c", 5}};

  // A daemon's memory as it is when it dies: three contexts, and one that was released.
  void write_and_die() {
    daemon_->kill();
    daemon_->store().clear();
    daemon_->start_again();
    ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
    KvWorker worker(daemon_->control_path());
    for (const auto& [session, length] : lengths_) {
      ASSERT_EQ(why(worker.open(session, 1)), "");
      ASSERT_EQ(why(worker.append(session, length)), "");
    }
    ASSERT_EQ(why(worker.open("released", 1)), "");
    ASSERT_EQ(why(worker.context("released").release()), "");
    daemon_->kill();
    (void)daemon_->store();
  }

  [[nodiscard]] int tables() {
    const auto& kept = daemon_->store().kept();
    return std::ranges::find_if(kept,
                                [](const platform::KeptDescriptor& each) {
                                  return platform::MemoryFile::role_of(each.fd.get()) == "tables";
                                })
        ->fd.get();
  }
  template <class T>
  [[nodiscard]] T read(std::uint64_t offset) {
    alignas(T) std::array<std::byte, sizeof(T)> bytes{};
    EXPECT_EQ(::pread(tables(), bytes.data(), sizeof(T), static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof(T)));
    return std::bit_cast<T>(bytes);
  }
  void write(std::uint64_t offset, std::uint64_t value) {
    ASSERT_EQ(::pwrite(tables(), &value, sizeof value, static_cast<off_t>(offset)),
              static_cast<ssize_t>(sizeof value));
  }

  // Every word that says something in the tables that write_and_die() leaves.
  [[nodiscard]] std::vector<Word> words() {
    std::vector<Word> found;
    const auto add = [&](const std::string& name, std::uint64_t from, std::uint64_t bytes,
                         bool is_of_one_context) {
      for (std::uint64_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
        found.push_back(
            {name + "+" + std::to_string(at), from + at, name != "header", is_of_one_context});
      }
    };
    add("header", 0, sizeof(TablesHeader), false);
    const auto capacities = read<Capacities>(offsetof(TablesHeader, capacities));
    const auto geometry = decode_geometry(read<GeometryRecord>(offsetof(TablesHeader, geometry)));
    const FileLayout layout = FileLayout::of(capacities, geometry);
    const std::uint64_t id = SessionId::from("b").value().words()[0];
    const auto find = [&](std::uint64_t begin, std::uint64_t record_bytes, std::uint64_t id_at) {
      while (read<std::uint64_t>(begin + id_at) != id) begin += record_bytes;
      return begin;
    };
    add("slot of b", find(layout.slots.value(), sizeof(SlotRecord), offsetof(SlotRecord, id)),
        sizeof(SlotRecord), true);
    add("ledger record of b",
        find(layout.ledger.value(), sizeof(LedgerRecord), offsetof(LedgerRecord, id)),
        sizeof(LedgerRecord), true);
    // 20, 40 and 5 tokens of chunks of 16: six chunks of three contexts.
    add("chunk word", layout.chunk_words.value(), 6 * sizeof(std::uint64_t), false);
    add("chunk seal", layout.chunk_seals.value(), 6 * sizeof(std::uint64_t), false);
    add("kept head", layout.kept_heads.value(), sizeof(KeptHeadRecord), false);
    add("page record", layout.page_records.value(), sizeof(PageRecord), false);
    add("extent bits", layout.extent_bits.value(), sizeof(std::uint64_t), false);
    for (std::uint64_t at = 0, used = 0; at < capacities.index_count && used < 3; ++at) {
      const std::uint64_t offset = layout.index.value() + at * sizeof(IndexEntry);
      if (read<std::uint64_t>(offset) == 0) continue;
      add("index entry", offset, sizeof(std::uint64_t), false);
      ++used;
    }
    return found;
  }

  // What a client that attaches now finds of each context: "", or why it is not there.
  [[nodiscard]] std::map<std::string, std::string> look_at_all() const {
    std::map<std::string, std::string> found;
    const auto client = Client::attach(
        {.socket_path = daemon_->control_path(), .access = Access::read}, worker_recipe());
    for (const auto& [session, length] : lengths_) {
      if (!client) {
        found[session] = client.error().message();
        continue;
      }
      const auto view =
          client->resolve(SessionId::from(session).value(), Epoch{1}, TokenCount{length});
      if (view) {
        EXPECT_EQ(wrong_bytes(worker_recipe(), session, 1, *view), 0U) << session;
      }
      found[session] = view ? "" : view.error().message();
    }
    return found;
  }
};

// Never wrong bytes, never a daemon that does not come up; a word of one context costs that one,
// and what makes the whole doubtful is a cold start that one line tells of.
TEST_F(DamagedTables, CostWhatTheDamagedWordTellsOfAndNoMore) {
  write_and_die();
  const std::vector<Word> words = this->words();
  ASSERT_GT(words.size(), 80U);
  std::size_t cold = 0, whole = 0, lost = 0;
  for (std::size_t n = 0; n < words.size(); n += kIsSanitized ? 7 : 1) {
    for (const bool is_next : {false, true}) {
      SCOPED_TRACE(words[n].name + (is_next ? " + 1" : " inverted"));
      write_and_die();
      const auto before = read<std::uint64_t>(words[n].offset);
      write(words[n].offset, is_next ? before + 1 : ~before);
      const std::size_t refusals = log_count("event=adoption-refused");
      daemon_->start_again();
      ASSERT_TRUE(daemon_->wait_ready()) << daemon_->err();
      const bool is_adopted = status().at("adopted_shards") == 1;
      const auto found = look_at_all();
      if (HasFailure()) return;
      const auto missing =
          std::ranges::count_if(found, [](const auto& each) { return !each.second.empty(); });
      EXPECT_EQ(broken_invariant(*daemon_), "");
      EXPECT_EQ(is_adopted, words[n].is_of_a_table);
      if (!is_adopted) {
        ++cold;
        EXPECT_EQ(missing, 3);
        EXPECT_FALSE(words[n].is_of_one_context);
        EXPECT_TRUE(eventually([&] { return log_count("event=adoption-refused") > refusals; }));
        EXPECT_EQ(log_count("event=adoption-refused"), refusals + 1) << daemon_->err();
      } else {
        missing == 0 ? ++whole : ++lost;
        // The word of bits tells of the memory of all.
        if (words[n].name != "extent bits+0") {
          EXPECT_LE(missing, 1);
        }
      }
      if (words[n].is_of_one_context) {
        EXPECT_EQ(found.at("a"), "");
        EXPECT_EQ(found.at("c"), "");
      }
      if (HasFailure()) return;
    }
  }
  std::printf("%zu words, each twice: %zu cold, %zu with something lost, %zu with all there\n",
              words.size(), cold, lost, whole);
  EXPECT_GT(cold, 0U);
  EXPECT_GT(lost, 0U);
  EXPECT_GT(whole, 0U);
}

}  // namespace
}  // namespace hotkv::testing
