// The files of a shard as a daemon finds them at its start, whatever stands in them: adopted, or
// refused with an error and left alone; never a crash, and no context shows what is not its own.
//
// An input chooses one of the images that real operations made, some cut off between two stores,
// and changes words of it.

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "daemon/core/shard_tables.hpp"
#include "shared/session_hash.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/kept_images.hpp"
#include "tests/fuzz/tiny_shards.hpp"

namespace hotkv::fuzz {
namespace {

// The budget; more would be no damage but another configuration.
constexpr std::size_t kExtentsMax = 12;

// In one call: byte by byte, each with its checks, it would take a third of the time of an input.
void copy_bytes(std::span<const std::byte> from, std::byte* to) {
  std::memcpy(to, from.data(), from.size());
}

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input)
      : input_(input), image_(images()[input_.byte() % images().size()]) {
    (void)files_.format(plan_of_images());
    const auto memory = files_.memory();
    copy_bytes(image_.tables, memory.tables.data());
    copy_bytes(image_.lengths, memory.arena.data());
    copy_bytes(image_.pages, memory.pages.data());
    for (const auto& [extent, bytes] : image_.extents) {
      files_.provision(extent);
      copy_bytes(bytes, files_.tables().chunk(ChunkIndex{extent}).data());
    }
    memory_ = memory;
  }

  void run() {
    const std::uint32_t changes = input_.below(9);
    for (std::uint32_t i = 0; i < changes; ++i) change();
    note(0);
    const std::vector<const Known*> untouched = untouched_contexts();
    const auto adopted = adopt();
    if (!adopted) {
      require(is_typed(adopted.error().code), "a refusal of another kind");
      require(is_as_noted(0), "a refused shard is not left alone");
      return;
    }
    check_contexts();
    for (const Known* known : untouched) check_untouched(*known);
    note(1);
    const auto contexts = names();
    require(adopt().has_value(), "what was adopted is refused the second time");
    require(names() == contexts, "a second adoption changes the contexts");
    require(is_as_noted(1), "a second adoption changes the files");
    work_on();
  }

 private:
  static bool is_typed(ErrorCode code) {
    return code == ErrorCode::shard_damaged || code == ErrorCode::unsupported_version ||
           code == ErrorCode::uncertified_architecture || code == ErrorCode::invalid_argument;
  }
  // What the daemon alone writes, to be compared later. The copies are made in the same place for
  // every input: fresh ones of that size cost more than all the rest.
  void note(std::size_t which) {
    copy_bytes(files_.memory().tables, notes()[which].data());
    copy_bytes(lengths(), notes()[which].data() + image_.tables.size());
  }
  [[nodiscard]] bool is_as_noted(std::size_t which) const {
    const std::byte* noted = notes()[which].data();
    return std::memcmp(noted, files_.memory().tables.data(), image_.tables.size()) == 0 &&
           std::memcmp(noted + image_.tables.size(), lengths().data(), image_.lengths.size()) == 0;
  }
  [[nodiscard]] std::span<const std::byte> lengths() const {
    return files_.memory().arena.first(image_.lengths.size());
  }
  static std::array<std::vector<std::byte>, 2>& notes() {
    const std::size_t bytes = images()[0].tables.size() + images()[0].lengths.size();
    static auto& both = *new std::array<std::vector<std::byte>, 2>{std::vector<std::byte>(bytes),
                                                                   std::vector<std::byte>(bytes)};
    return both;
  }

  // ---- damage

  template <class Word>
  void change_word(std::byte* record, std::size_t record_bytes) {
    const std::size_t offset = input_.byte() % (record_bytes / sizeof(Word)) * sizeof(Word);
    Word word;
    std::memcpy(&word, record + offset, sizeof word);
    const std::uint8_t how = input_.byte();
    if (how < 0x60) {
      word = static_cast<Word>(how < 0x30 ? input_.number() : input_.wide_number());
    } else if (how < 0xa0) {
      word = static_cast<Word>(word + how % 16 - 8);
    } else {
      word ^= static_cast<Word>(Word{1} << how % (8 * sizeof(Word)));
    }
    std::memcpy(record + offset, &word, sizeof word);
  }
  template <class Record>
  void damage(std::span<Record> records, std::uint32_t often) {
    const std::size_t index =
        (input_.below(8) == 0 ? input_.raw<std::uint16_t>() : input_.below(often)) % records.size();
    auto* record = reinterpret_cast<std::byte*>(&records[index]);
    if (input_.below(2) == 0 && sizeof(Record) % 8 == 0) {
      change_word<std::uint64_t>(record, sizeof(Record));
    } else {
      change_word<std::uint32_t>(record, sizeof(Record));
    }
  }

  void change() {
    const core::ShardTables tables = files_.tables();
    const FileLayout layout = FileLayout::of(tables.capacities(), tables.geometry());
    const std::uint32_t slots = tables.capacities().slot_count;
    const auto slot_records = std::span(&tables.slot(SlotIndex{0}), slots);
    switch (input_.below(14)) {
      case 0: return damage(std::span(&tables.header(), 1), 1);
      case 1: return damage(slot_records, 4);
      case 2: {
        // One context names another's chunk, or its session.
        SlotRecord& one = slot_records[input_.below(4)];
        const SlotRecord& other = slot_records[input_.below(4)];
        if (input_.below(2) == 0) {
          one.head.store(HeadWord{HeadWord::from_bits(one.head.load()).generation,
                                  Tip::from_bits(input_.below(16))}
                             .bits());
        } else {
          std::memcpy(static_cast<void*>(&one.id), &other.id, sizeof one.id);
          one.id_bytes.store(other.id_bytes.load());
        }
        return;
      }
      case 3: return damage(tables.index(), 64);
      case 4: return damage(tables.ledger(), 5);
      case 5: {
        AtomicWord& first = input_.below(4) == 0 ? tables.chunk_seal(ChunkIndex{0})
                                                 : tables.chunk_word(ChunkIndex{0});
        return damage(std::span(&first, tables.capacities().chunk_count), 12);
      }
      case 6: return damage(tables.kept_heads(), 3);
      case 7:
        return damage(std::span(&tables.page_record(PageIndex{0}), tables.capacities().page_count),
                      3);
      case 8:
        return damage(std::span(reinterpret_cast<LengthLine*>(memory_.arena.data()), slots), 4);
      case 9: {
        ClientPage& page = tables.untrusted_page(PageIndex{input_.below(3)});
        page.pins[input_.byte()].store(input_.wide_number());
        page.high_water.store(input_.number());
        return;
      }
      case 10: return copy_a_record(slot_records, tables.ledger(), tables.kept_heads());
      case 11: {  // an extent lost its memory, or has some that nobody knew of
        const std::uint32_t extent = input_.byte() % tables.geometry().extent_count;
        if (!files_.is_provisioned(ExtentIndex{extent}) &&
            files_.provisioned().size() >= kExtentsMax) {
          return;
        }
        AtomicWord& bits = files_.tables().extent_bits()[extent / 64];
        bits = bits ^ std::uint64_t{1} << extent % 64;
        if (files_.is_provisioned(ExtentIndex{extent})) return files_.punch(extent);
        files_.provision(extent);
        return;
      }
      case 12: {  // a file of another size
        const std::array files{&memory_.tables, &memory_.arena, &memory_.pages};
        auto& file = *files[input_.below(3)];
        file = file.first(file.size() - std::min<std::size_t>(file.size(), input_.number() % 9000));
        return;
      }
      default: {
        const std::size_t at = input_.raw<std::uint16_t>() * 4 % layout.tables_bytes;
        change_word<std::uint32_t>(memory_.tables.data() + at, 4);
      }
    }
  }

  void copy_a_record(std::span<SlotRecord> slots, std::span<LedgerRecord> ledger,
                     std::span<KeptHeadRecord> kept) {
    const std::uint32_t from = input_.below(5);
    const std::uint32_t to = input_.below(5);
    const auto copy = [&](auto records) {
      std::memcpy(static_cast<void*>(&records[to]), &records[from], sizeof records[0]);
    };
    switch (input_.below(3)) {
      case 0: copy(slots); break;
      case 1: copy(ledger); break;
      default: copy(kept);
    }
  }

  // ---- what must hold

  std::expected<core::ShardId, Error> adopt() {
    tiny_.emplace();
    auto adopted = tiny_->core.adopt_shard(memory_, default_certified_architectures());
    if (adopted) {
      shard_ = *adopted;
      give_back_what_is_not_accounted();
      tiny_->verify();
    }
    return adopted;
  }

  // As the daemon does. Where the bits lie, what they claim is a hole, which reads as zeros.
  void give_back_what_is_not_accounted() {
    const auto punched = tiny_->core.shrink_to_limits(1 << 20);
    const core::ShardTables tables = adopted_tables();
    for (std::uint32_t i = 0; i < tables.geometry().extent_count; ++i) {
      const bool is_accounted = (tables.extent_bits()[i / 64] >> i % 64 & 1) != 0;
      if (is_accounted == files_.is_provisioned(ExtentIndex{i})) continue;
      is_accounted ? files_.provision(i) : files_.punch(i);
    }
  }

  using Name = std::tuple<SessionId, std::uint64_t, std::uint32_t, std::uint32_t, std::uint32_t>;
  [[nodiscard]] std::vector<Name> names() const {
    std::vector<Name> all;
    for (const core::ContextInfo& context : tiny_->core.contexts()) {
      all.emplace_back(context.session, context.epoch.value(), context.generation.value(),
                       context.length.value(), context.chunks);
    }
    return all;
  }

  // The tables of the shard as it was adopted: its header decides.
  [[nodiscard]] core::ShardTables adopted_tables() const {
    const auto& header = *reinterpret_cast<const TablesHeader*>(memory_.tables.data());
    return {memory_, header.capacities, decode_geometry(header.geometry)};
  }

  void check_contexts() {
    const core::ShardTables tables = adopted_tables();
    std::set<std::uint32_t> owned;
    std::set<SessionId> sessions;
    for (const core::ContextInfo& context : tiny_->core.contexts()) {
      require(sessions.insert(context.session).second, "a session has two contexts");
      require(context.length <= context.writable, "a context is longer than its chain");
    }
    for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
      const Tip tip = load_head(tables.slot(SlotIndex{i}).head).tip;
      if (!tip.is_free()) check_bytes(SlotIndex{i}, tables);
      for (const std::uint32_t chunk : chunks_of(tables, tip)) {
        require(owned.insert(chunk).second, "a chunk has two contexts");
        require(files_.is_provisioned(tables.geometry().extent_of(ChunkIndex{chunk})),
                "a chunk of a context has no memory");
      }
    }
  }

  // Whatever was damaged: what is shown was there, and shows no bytes but its own. (Clients write
  // the length: where that was changed, chunks are shown that nobody has filled yet.)
  void check_bytes(SlotIndex slot, const core::ShardTables& tables) const {
    const SlotRecord& record = tables.slot(slot);
    const auto shown = core::read_session_id(record.id_bytes, record.id).value();
    std::uint32_t number = 0;
    while (number < 3 && session(number) != shown) ++number;
    require(number < 3, "a context is shown that was not there");
    const std::size_t line = slot.value() * sizeof(LengthLine);
    const std::byte* lengths = memory_.arena.data();
    if (std::memcmp(lengths + line, image_.lengths.data() + line, sizeof(LengthLine)) != 0) return;
    const auto length = LengthWord::from_bits(tables.length_word(slot).load()).tokens;
    for (const std::uint32_t chunk : chunks_of(tables, load_head(record.head).tip)) {
      const auto word = ChunkWord::from_bits(tables.chunk_word(ChunkIndex{chunk}).load());
      if (word.ordinal * tables.geometry().chunk_tokens >= length.value()) continue;
      if (!image_.extents.contains(chunk) || !is_filled_as_in_image(chunk)) continue;
      require(image_.extents.at(chunk)[0] == fill_of(number, record.epoch.load()),
              "a context shows the bytes of another");
    }
  }

  // ---- contexts that no damage can have reached

  template <class Record>
  [[nodiscard]] std::size_t offset_of(const Record& record) const {
    return static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&record) -
                                    files_.memory().tables.data());
  }
  template <class Record>
  [[nodiscard]] bool is_as_in_image(const Record& record) const {
    return std::memcmp(static_cast<const void*>(&record), image_.tables.data() + offset_of(record),
                       sizeof record) == 0;
  }

  [[nodiscard]] bool is_filled_as_in_image(std::uint32_t chunk) const {
    const auto bytes = files_.tables().chunk(ChunkIndex{chunk});
    return std::memcmp(bytes.data(), image_.extents.at(chunk).data(), bytes.size()) == 0;
  }

  [[nodiscard]] std::vector<const Known*> untouched_contexts() const {
    const core::ShardTables tables = files_.tables();
    std::vector<const Known*> untouched;
    if (memory_.tables.size() != files_.memory().tables.size() ||
        memory_.arena.size() != files_.memory().arena.size() ||
        memory_.pages.size() != files_.memory().pages.size() || !is_as_in_image(tables.header())) {
      return untouched;
    }
    for (const Known& known : image_.whole) {
      if (is_untouched(known, tables)) untouched.push_back(&known);
    }
    return untouched;
  }

  [[nodiscard]] bool is_untouched(const Known& known, const core::ShardTables& tables) const {
    const std::size_t line = known.slot.value() * sizeof(LengthLine);
    if (!is_as_in_image(tables.slot(known.slot)) ||
        std::memcmp(files_.memory().arena.data() + line, image_.lengths.data() + line,
                    sizeof(LengthLine)) != 0) {
      return false;
    }
    for (const std::uint32_t chunk : known.chunks) {
      if (!is_as_in_image(tables.chunk_word(ChunkIndex{chunk})) ||
          !is_as_in_image(tables.chunk_seal(ChunkIndex{chunk})) ||
          !is_as_in_image(tables.extent_bits()[chunk / 64]) ||
          !files_.is_provisioned(ExtentIndex{chunk}) || !is_filled_as_in_image(chunk)) {
        return false;
      }
    }
    for (const LedgerRecord& record : tables.ledger()) {
      if (is_as_in_image(record)) continue;
      LedgerRecord before{};
      std::memcpy(static_cast<void*>(&before), image_.tables.data() + offset_of(record),
                  sizeof before);
      if (core::read_session_id(record.id_bytes, record.id) == known.session ||
          core::read_session_id(before.id_bytes, before.id) == known.session) {
        return false;
      }
    }
    return true;
  }

  void check_untouched(const Known& known) const {
    const core::ShardTables tables = files_.tables();
    const auto length = LengthWord::from_bits(tables.length_word(known.slot).load());
    require(load_head(tables.slot(known.slot).head) == known.head &&
                length.tokens == known.length &&
                slot_has_session(tables.slot(known.slot), known.session),
            "a context is another though no damage can have reached it");
    for (const std::uint32_t chunk : known.chunks) {
      require(is_filled_as_in_image(chunk),
              "bytes of a context are others though no damage can have reached it");
    }
  }

  void work_on() {
    core::Core& core = tiny_->core;
    core.tick();  // nobody of those who had pages is alive
    tiny_->verify();
    const auto page = core.attach(shard_, Access::write, 1, 1);
    if (!page) return;
    tiny_->files.alive.insert(page->client);
    for (const std::uint32_t number : {0u, 5u, 1u}) {
      const Epoch epoch{input_.below(4)};
      const auto opened =
          core.open(page->client, session(number), epoch, core.recipe_of(shard_).fingerprint());
      core.end_message(shard_);
      if (!opened) continue;
      (void)core.append(page->client, session(number), epoch, opened->generation,
                        TokenCount{opened->length.value() + input_.below(12)});
      settle();
      core.end_message(shard_);
      const auto now =
          core.explain(page->client, session(number), epoch, core.recipe_of(shard_).fingerprint(),
                       TokenCount{0}, LengthMatch::any);
      if (!now) continue;
      (void)core.truncate(page->client, session(number), epoch, now->generation, now->length,
                          TokenCount{now->length.value() / 2});
      core.end_message(shard_);
      tiny_->verify();
    }
    tiny_->files.alive.clear();
    tiny_->now_ms += 5000;
    core.tick();
    tiny_->verify();
    for (const core::ContextInfo& context : core.contexts()) {
      (void)core.release({shard_, PageIndex{0}}, context.session, context.epoch, Generation{0},
                         SlotIndex{0});
    }
    core.end_message(shard_);
    tiny_->verify();
    const core::Account account = core.status().account;
    require(account.used == 0 && account.kept == 0, "chunks are in use that nobody can name");
  }

  void settle() {
    for (auto orders = tiny_->core.take_memory_orders(); !orders.empty();
         orders = tiny_->core.take_memory_orders()) {
      for (const core::MemoryOrder& order : orders) carry_out(order);
    }
    (void)tiny_->core.take_finished_grants();
  }
  void carry_out(const core::MemoryOrder& order) {
    const auto extent_of = [&](const core::ExtentRange& range) {
      return static_cast<std::uint32_t>(
          (range.arena_offset.value() - adopted_tables().first_chunk_offset().value()) /
          adopted_tables().geometry().extent_bytes);
    };
    for (const auto& range : order.punch) files_.punch(extent_of(range));
    for (const auto& range : order.provision) files_.provision(extent_of(range));
    tiny_->core.memory_order_done(order.id, {}, true);
  }

  static TinyMemory& reused_memory() {
    static auto& memory = *new TinyMemory;
    return memory;
  }

  FuzzInput input_;
  const Image& image_;
  TinyMemory& files_ = reused_memory();
  core::ShardMemory memory_;
  std::optional<TinyCore> tiny_;
  core::ShardId shard_;
};

}  // namespace
}  // namespace hotkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hotkv::fuzz::Fuzz(hotkv::fuzz::FuzzInput({data, size})).run();
  return 0;
}
