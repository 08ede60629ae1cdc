#include "tests/fuzz/kept_images.hpp"

#include <algorithm>

#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/tiny_shards.hpp"

namespace hotkv::fuzz {

std::set<std::uint32_t> chunks_of(const core::ShardTables& tables, Tip tip) {
  std::set<std::uint32_t> chunks;
  while (tip.is_chunk() && chunks.insert(tip.chunk().value()).second) {
    const auto previous = ChunkWord::from_bits(tables.chunk_word(tip.chunk()).load()).previous;
    tip = previous ? Tip::at(*previous) : Tip::empty();
  }
  return chunks;
}

namespace {

struct Killed {};

// Something in every table: contexts of several lengths, an empty one, an ended one, heads that are
// kept for a pin. Session 1 is what the operations cut off by a kill are about.
class ImageMaker {
 public:
  ImageMaker() : shard_(tiny_.add_shard(1)), worker_(tiny_.attach(shard_)) {
    tiny_.attach(shard_, Access::read);
    grow(0, 6);
    grow(1, 7);
    grow(3, 3);
    end(3);
    grow(2, 5);
    pin(1);
  }

  [[nodiscard]] Image save(bool is_killed) {
    const TinyMemory& files = tiny_.files.at(shard_);
    const auto memory = files.memory();
    const core::ShardTables tables = files.tables();
    const auto copy = [](std::span<const std::byte> bytes) {
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    Image image{copy(memory.tables),
                copy(memory.arena.first(tables.capacities().slot_count * sizeof(LengthLine))),
                copy(memory.pages),
                {},
                {}};
    for (const std::uint32_t extent : files.provisioned()) {
      image.extents[extent] = copy(tables.chunk(ChunkIndex{extent}));
    }
    for (const std::uint32_t number : {0u, 1u, 2u}) {
      if (is_killed && number == 1) continue;
      if (const auto now = tiny_.find(shard_, session(number))) {
        image.whole.push_back({session(number), now->slot, now->head, now->length.tokens,
                               chunks_of(tables, now->head.tip)});
      }
    }
    return image;
  }
  // The same operations, cut off before the n-th store; false if there are fewer.
  bool work_until(std::size_t stores) {
    tiny_.core.set_store_probe([&stores] {
      if (stores-- == 0) throw Killed{};
    });
    bool was_killed = false;
    try {
      work();
    } catch (const Killed&) {
      was_killed = true;
    }
    tiny_.core.set_store_probe({});
    return was_killed;
  }

 private:
  core::Position open(std::uint32_t number, std::uint64_t epoch) {
    return tiny_.core.open(worker_, session(number), Epoch{epoch}, tiny_recipe().fingerprint())
        .value();
  }
  void grow(std::uint32_t number, std::uint32_t tokens, std::uint64_t epoch = 1) {
    const core::Position from = open(number, epoch);
    (void)tiny_.core.append(worker_, session(number), Epoch{epoch}, from.generation,
                            TokenCount{tokens});
    tiny_.settle();
    (void)tiny_.core.take_finished_grants();
    const auto now = tiny_.find(shard_, session(number)).value();
    const core::ShardTables tables = tiny_.files.at(shard_).tables();
    for (const std::uint32_t chunk : chunks_of(tables, now.head.tip)) {
      std::ranges::fill(tables.chunk(ChunkIndex{chunk}), fill_of(number, epoch));
    }
    require(publish(tables.length_word(now.slot), now.head.generation, now.length.tokens,
                    TokenCount{tokens}),
            "a publish of an image fails");
    tiny_.core.end_message(shard_);
  }
  void truncate(std::uint32_t number, std::uint32_t to) {
    const auto now = tiny_.find(shard_, session(number)).value();
    (void)tiny_.core.truncate(worker_, session(number), Epoch{now.epoch}, now.head.generation,
                              now.length.tokens, TokenCount{to});
    tiny_.core.end_message(shard_);
  }
  void end(std::uint32_t number) {
    (void)tiny_.core.release(worker_, session(number), Epoch{1}, Generation{0}, SlotIndex{0});
    tiny_.core.end_message(shard_);
  }
  void pin(std::uint32_t number) {
    const auto now = tiny_.find(shard_, session(number)).value();
    ClientPage& page = tiny_.files.at(shard_).tables().untrusted_page(worker_.page);
    page.high_water.store(1);
    page.pins[0].store(PinWord{now.slot, now.head.generation}.bits());
  }
  // Everything that can happen to session 1, with its first generation pinned.
  void work() {
    truncate(1, 5);
    grow(1, 9);  // copies the tail
    (void)tiny_.core.close(worker_, session(1), Epoch{1},
                           tiny_.find(shard_, session(1))->head.generation);
    tiny_.core.end_message(shard_);
    grow(1, 2, 2);  // supersedes the older epoch
    truncate(1, 0);
    (void)tiny_.core.release(worker_, session(1), Epoch{2}, Generation{0}, SlotIndex{0});
    tiny_.core.end_message(shard_);
    grow(1, 4, 3);
  }

  TinyCore tiny_;
  core::ShardId shard_;
  core::ClientId worker_;
};

}  // namespace

const std::vector<Image>& images() {
  static const std::vector<Image>& all = *new std::vector<Image>([] {
    std::vector<Image> made;
    made.push_back(ImageMaker().save(false));
    for (std::size_t stores = 0; made.size() < 255; ++stores) {
      ImageMaker maker;
      const bool was_killed = maker.work_until(stores);
      made.push_back(maker.save(true));
      if (!was_killed) break;
    }
    return made;
  }());
  return all;
}

const core::ShardPlan& plan_of_images() {
  static const core::ShardPlan& one = *new core::ShardPlan([] {
    TinyCore tiny;
    return tiny.core.plan_shard(1, tiny_recipe()).value();
  }());
  return one;
}

}  // namespace hotkv::fuzz
