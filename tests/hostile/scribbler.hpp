#pragma once
// A client of a shard that stores what it likes wherever it can, and one that makes the daemon
// look.

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "shared/layout.hpp"
#include "shared/mapping.hpp"
#include "tests/support/kv_worker.hpp"
#include "tests/support/raw_client.hpp"

namespace hotkv::testing {

// A writer that maps all of arena and pages, and stores what it likes.
class Scribbler {
 public:
  explicit Scribbler(const DaemonProcess& daemon) : client_(daemon.control_path()) {
    (void)client_.hello();
    RawReply attached = client_.attach(worker_recipe(), Access::write);
    const auto reply = attached.body_as<protocol::AttachReply>();
    tables_ = map(attached, 0, reply.tables_bytes, MapAccess::read_only);
    arena_ = map(attached, 1, reply.arena_bytes, MapAccess::read_write);
    pages_ = map(attached, 2, reply.pages_bytes, MapAccess::read_write);
    own_page_ = reply.page;
    files_ = std::move(attached.descriptors);
    layout_ = FileLayout::of(header().capacities, decode_geometry(header().geometry));
  }

  [[nodiscard]] RawClient& client() { return client_; }
  // Read-write, as the daemon gave them.
  [[nodiscard]] int arena_fd() const { return files_.fds[1].get(); }
  [[nodiscard]] int pages_fd() const { return files_.fds[2].get(); }
  [[nodiscard]] std::span<std::byte> tables() const { return tables_.bytes(); }
  [[nodiscard]] std::span<std::byte> arena() const { return arena_.bytes(); }
  [[nodiscard]] std::span<std::byte> pages() const { return pages_.bytes(); }
  [[nodiscard]] const TablesHeader& header() const {
    return *reinterpret_cast<const TablesHeader*>(tables_.bytes().data());
  }
  [[nodiscard]] std::span<LengthLine> lines() const {
    return {reinterpret_cast<LengthLine*>(arena_.bytes().data()), header().capacities.slot_count};
  }
  [[nodiscard]] std::span<TouchWord> touches() const {
    return {reinterpret_cast<TouchWord*>(pages_.bytes().data()), header().capacities.slot_count};
  }
  [[nodiscard]] ClientPage& page(std::uint32_t index) const {
    return *reinterpret_cast<ClientPage*>(pages_.bytes().data() +
                                          layout_.client_page(PageIndex{index}).value());
  }
  [[nodiscard]] ClientPage& own_page() const { return page(own_page_); }
  [[nodiscard]] HeadWord head(std::uint32_t slot) const {
    const auto* slots =
        reinterpret_cast<const SlotRecord*>(tables_.bytes().data() + layout_.slots.value());
    return load_head(slots[slot].head);
  }

  // `next()` into every length, every touch and every word of every page, its own and others'.
  template <class Next>
  void scribble_everywhere(Next next) const {
    for (LengthLine& line : lines()) line.word.store(next());
    for (TouchWord& touch : touches()) touch.store(static_cast<std::uint32_t>(next()));
    for (std::uint32_t index = 0; index < header().capacities.page_count; ++index) {
      page(index).high_water.store(static_cast<std::uint32_t>(next()));
      for (AtomicWord& pin : page(index).pins) pin.store(next());
    }
  }

 private:
  static Mapping map(const RawReply& attached, std::size_t file, std::uint64_t bytes,
                     MapAccess access) {
    return Mapping::map(attached.descriptors.fds[file].get(),
                        {.offset_bytes = 0, .size_bytes = bytes, .access = access}, "file")
        .value();
  }

  RawClient client_;
  ReceivedDescriptors files_;
  Mapping tables_, arena_, pages_;
  std::uint32_t own_page_ = 0;
  FileLayout layout_;
};

// Contexts of one raw client, used so that the daemon looks at the words behind them.
class Provoker {
 public:
  explicit Provoker(RawClient& client) : client_(client) {}

  // Makes, grows, rolls back, asks after and ends contexts. Refusals are fine, silence is not.
  void provoke() {
    const std::string session = "s" + std::to_string(count_++ % 24);
    const protocol::OperationResult opened = answered(client_.open(session, 1));
    const std::uint32_t generation = opened.generation;
    answered(client_.append(session, 1, generation, opened.length_tokens % 64 + 20));
    answered(client_.explain(session, 1, 20));
    const std::uint32_t length = client_.explain(session, 1, 0).length_tokens;
    answered(client_.truncate(session, 1, generation, length, length / 2));
    const protocol::OperationResult again = answered(client_.open(session, 1));
    answered(client_.append(session, 1, again.generation, length / 2 % 64 + 17));
    if (count_ % 3 == 0) answered(client_.close(session, 1, again.generation));
    if (count_ % 5 == 0) answered(client_.release(session, 1));
  }

 private:
  static protocol::OperationResult answered(const protocol::OperationResult& result) {
    EXPECT_LE(result.outcome, static_cast<std::uint32_t>(protocol::Outcome::error));
    return result;
  }

  RawClient& client_;
  std::uint64_t count_ = 0;
};

}  // namespace hotkv::testing
