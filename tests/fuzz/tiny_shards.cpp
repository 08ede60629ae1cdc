#include "tests/fuzz/tiny_shards.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "shared/session_hash.hpp"
#include "tests/fuzz/fuzz_input.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define HOTKV_FUZZ_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HOTKV_FUZZ_POISON 1
#endif
#endif
#ifdef HOTKV_FUZZ_POISON
#include <sanitizer/asan_interface.h>
#endif

namespace hotkv::fuzz {
namespace {

constexpr std::size_t kTablesBytesMax = 256 << 10;
constexpr std::size_t kArenaBytesMax = kHugePageBytes + (std::size_t{512} << 10);
constexpr std::size_t kPagesBytesMax = 64 << 10;
constexpr std::uint32_t kChunkTokens = 4;
constexpr std::uint32_t kHonestTokens = 6;  // one whole chunk, and half of another

void poison([[maybe_unused]] std::span<std::byte> bytes) {
#ifdef HOTKV_FUZZ_POISON
  __asan_poison_memory_region(bytes.data(), bytes.size());
#endif
}
void unpoison([[maybe_unused]] std::span<std::byte> bytes) {
#ifdef HOTKV_FUZZ_POISON
  __asan_unpoison_memory_region(bytes.data(), bytes.size());
#endif
}

// Memory is made once in a process and lent to one input after the other. Never destroyed.
std::vector<TinyMemory*>& idle_memory() {
  static auto& idle = *new std::vector<TinyMemory*>;
  return idle;
}

TinyMemory* borrow_memory() {
  auto& idle = idle_memory();
  if (idle.empty()) return new TinyMemory;  // lent out and given back until the process ends
  TinyMemory* memory = idle.back();
  idle.pop_back();
  return memory;
}

}  // namespace

core::Limits tiny_limits() {
  core::Limits limits;
  limits.max_bytes = 12 * kPageBytes;
  limits.session_cap = 3;
  limits.ttl_ms = 1000;
  limits.tombstone_ttl_ms = 2000;
  limits.tombstones = 4;
  limits.max_shards = 3;
  limits.max_shards_per_owner = 2;
  limits.clients_per_shard = 3;
  limits.waiting_grants_max = 3;
  limits.chunk_tokens = kChunkTokens;
  return limits;
}

const Recipe& tiny_recipe() {
  static const Recipe recipe =
      Recipe::make({"llama", "tiny", DType::f16, 1, 4, 4, LayerRange{0, 0}}).value();
  return recipe;
}

const SessionId& session(std::uint32_t number) {
  // Of every size that matters: one byte, a whole word, the most there is.
  static const std::array<SessionId, kSessions> ids{
      SessionId::from("a").value(),        SessionId::from("b").value(),
      SessionId::from("12345678").value(), SessionId::from(std::string(128, 'x')).value(),
      SessionId::from("c").value(),        SessionId::from(std::string(3, '\0')).value()};
  return ids[number % kSessions];
}

// ---- TinyMemory ---------------------------------------------------------------------------------

TinyMemory::TinyMemory()
    : tables_(kTablesBytesMax), arena_(kArenaBytesMax), pages_(kPagesBytesMax) {
  for (const auto* file : {&tables_, &arena_, &pages_}) poison(file->bytes());
}

bool TinyMemory::format(const core::ShardPlan& plan) {
  for (const auto* file : {&tables_, &arena_, &pages_}) poison(file->bytes());
  provisioned_.clear();
  if (plan.layout.tables_bytes > kTablesBytesMax || plan.layout.arena_bytes > kArenaBytesMax ||
      plan.layout.pages_bytes > kPagesBytesMax) {
    return false;
  }
  capacities_ = plan.capacities;
  geometry_ = plan.geometry;
  layout_ = plan.layout;
  const std::uint64_t length_bytes = capacities_.slot_count * sizeof(LengthLine);
  for (const auto part :
       {tables_.bytes().first(layout_.tables_bytes), arena_.bytes().first(length_bytes),
        pages_.bytes().first(layout_.pages_bytes)}) {
    unpoison(part);
    std::memset(part.data(), 0, part.size());
  }
  return true;
}

core::ShardMemory TinyMemory::memory() const {
  return {tables_.bytes().first(layout_.tables_bytes), arena_.bytes().first(layout_.arena_bytes),
          pages_.bytes().first(layout_.pages_bytes)};
}

void TinyMemory::provision(std::uint32_t extent) {
  const auto bytes = arena_.bytes().subspan(
      layout_.chunks.value() + extent * geometry_.extent_bytes, geometry_.extent_bytes);
  unpoison(bytes);
  if (provisioned_.insert(extent).second) std::memset(bytes.data(), 0, bytes.size());
}

void TinyMemory::punch(std::uint32_t extent) {
  const auto bytes = arena_.bytes().subspan(
      layout_.chunks.value() + extent * geometry_.extent_bytes, geometry_.extent_bytes);
  poison(bytes);
  provisioned_.erase(extent);
}

// ---- TinyFiles ----------------------------------------------------------------------------------

TinyFiles::TinyFiles() = default;

TinyFiles::~TinyFiles() {
  for (const auto& [shard, memory] : shards_) idle_memory().push_back(memory);
  if (prepared_ != nullptr) idle_memory().push_back(prepared_);
}

std::expected<server::PreparedShard, Error> TinyFiles::prepare(const core::ShardPlan& plan) {
  if (prepared_ == nullptr) prepared_ = borrow_memory();
  if (!prepared_->format(plan)) {
    return std::unexpected(system_error("create", "tables", ENOMEM));
  }
  return server::PreparedShard{prepared_->memory(), {++cookies_, {7, 11}}};
}

void TinyFiles::keep(core::ShardId shard) {
  shards_.emplace(shard, std::exchange(prepared_, nullptr));
}

void TinyFiles::drop(core::ShardId shard) {
  const auto found = shards_.find(shard);
  require(found != shards_.end(), "a shard is dropped that is not there");
  idle_memory().push_back(found->second);
  shards_.erase(found);
}

std::expected<server::AttachFiles, Error> TinyFiles::open_for(core::ClientId client, Access) {
  alive.insert(client);
  return server::AttachFiles{};
}

std::expected<void, Error> TinyFiles::run(const core::MemoryOrder& order) {
  if (refuses_orders) {
    return std::unexpected(Error{ErrorCode::too_many_waiting, "provision", "", "full", 0});
  }
  orders_.push_back(order);
  return {};
}

std::vector<core::ShardId> TinyFiles::shards() const {
  std::vector<core::ShardId> ids;
  for (const auto& [shard, memory] : shards_) ids.push_back(shard);
  return ids;
}

void TinyFiles::apply(const std::vector<core::ExtentRange>& ranges, bool provision) {
  for (const core::ExtentRange& range : ranges) {
    const auto found = shards_.find(range.shard);
    require(found != shards_.end(), "an order names a shard that is not there");
    TinyMemory& memory = *found->second;
    const auto layout = FileLayout::of(memory.capacities(), memory.geometry());
    const std::uint64_t extent_bytes = memory.geometry().extent_bytes;
    const std::uint64_t offset = range.arena_offset.value() - layout.chunks.value();
    require(range.arena_offset >= layout.chunks && offset % extent_bytes == 0 &&
                range.size_bytes != 0 && range.size_bytes % extent_bytes == 0 &&
                offset + range.size_bytes <= layout.arena_bytes - layout.chunks.value(),
            "an order names bytes that are no extents");
    for (std::uint64_t done = 0; done < range.size_bytes; done += extent_bytes) {
      const auto extent = static_cast<std::uint32_t>((offset + done) / extent_bytes);
      provision ? memory.provision(extent) : memory.punch(extent);
    }
  }
}

TinyFiles::Done TinyFiles::carry_out(bool punches, bool provisions) {
  const core::MemoryOrder order = orders_.front();
  orders_.erase(orders_.begin());
  if (punches || provisions) apply(order.punch, false);
  if (provisions) {
    apply(order.provision, true);
    return {order.id, {}, true};
  }
  return {order.id,
          std::unexpected(Error{ErrorCode::memory_unavailable, "provision", "memory", "none", 0}),
          punches};
}

// ---- TinyCore -----------------------------------------------------------------------------------

TinyCore::TinyCore(const core::Limits& the_limits)
    : limits(the_limits),
      core(
          limits, [this] { return now_ms; }, files) {}

core::ShardId TinyCore::add_shard(std::uint32_t owner_uid, const Recipe& recipe) {
  const auto plan = core.plan_shard(owner_uid, recipe).value();
  const auto prepared = files.prepare(plan).value();
  const core::ShardId shard = core.add_shard(plan, prepared.memory, prepared.identity);
  files.keep(shard);
  return shard;
}

core::ClientId TinyCore::attach(core::ShardId shard, Access access) {
  const core::ClientId client =
      core.attach(shard, access, 100, files.random_number().value()).value().client;
  files.alive.insert(client);
  return client;
}

void TinyCore::settle() {
  for (;;) {
    for (const core::MemoryOrder& order : core.take_memory_orders()) {
      require(files.run(order).has_value(), "an order is refused");
    }
    if (!files.has_orders()) return;
    auto done = files.carry_out(true, true);
    core.memory_order_done(done.id, std::move(done.result), done.punched);
  }
}

void TinyCore::verify() const {
  const auto broken = core.verify();
  if (broken) require(false, "verify: " + *broken);
}

void TinyCore::check() const {
  verify();
  const core::Account account = core.status().account;
  require(account.used + account.kept + account.free + account.in_transit == account.provisioned,
          "the account does not add up");
  require(account.provisioned <= limits.max_bytes, "more is provisioned than the budget");
}

void TinyCore::check_that_all_comes_back() {
  settle();
  files.alive.clear();
  core.tick();  // everybody is gone: no lease, no pin
  for (const core::ContextInfo& context : core.contexts()) {
    // Page 0 need not be anybody's any more: a release asks for no lease.
    (void)core.release({context.shard, PageIndex{0}}, context.session, context.epoch, Generation{0},
                       SlotIndex{0});
    core.end_message(context.shard);
  }
  check();
  const core::Account account = core.status().account;
  require(account.used == 0 && account.kept == 0, "chunks are in use that nobody can name");
  require(core.contexts().empty(), "a released context is still there");
}

std::optional<TinyCore::Standing> TinyCore::find(core::ShardId shard, const SessionId& wanted) {
  const core::ShardTables tables = files.at(shard).tables();
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    const SlotRecord& slot = tables.slot(SlotIndex{i});
    const HeadWord head = load_head(slot.head);
    if (head.tip.is_free() || !slot_has_session(slot, wanted)) continue;
    return Standing{SlotIndex{i}, head, slot.epoch.load(),
                    LengthWord::from_bits(tables.length_word(SlotIndex{i}).load())};
  }
  return std::nullopt;
}

// ---- HonestReader -------------------------------------------------------------------------------

namespace {

const SessionId& honest_session() {
  static const SessionId id = SessionId::from("honest").value();
  return id;
}

}  // namespace

HonestReader::HonestReader(TinyCore& tiny, core::ShardId shard)
    : tiny_(tiny), client_(tiny.attach(shard)) {
  const auto& recipe = tiny_.core.recipe_of(shard);
  const auto opened = tiny_.core.open(client_, honest_session(), Epoch{1}, recipe.fingerprint());
  (void)tiny_.core.append(client_, honest_session(), Epoch{1}, opened.value().generation,
                          TokenCount{kHonestTokens});
  tiny_.core.end_message(shard);
  tiny_.settle();
  require(tiny_.core.take_finished_grants().size() == 1, "the honest append is not granted");
  pinned_ = tiny_.find(shard, honest_session()).value();
  const core::ShardTables tables = tiny_.files.at(shard).tables();
  ClientPage& page = tables.untrusted_page(client_.page);
  page.high_water.store(1);
  require(claim_pin(page.pins[0], {pinned_.slot, pinned_.head.generation}), "pin");
  for (Tip tip = pinned_.head.tip; tip.is_chunk();) {
    const std::uint64_t bits = tables.chunk_word(tip.chunk()).load();
    chunk_words_.emplace_back(tip.chunk(), bits);
    for (std::byte& byte : tables.chunk(tip.chunk())) {
      byte = static_cast<std::byte>(0x5a + bytes_.size() * 7);
      bytes_.push_back(byte);
    }
    const auto previous = ChunkWord::from_bits(bits).previous;
    tip = previous ? Tip::at(*previous) : Tip::empty();
  }
  require(publish(tables.length_word(pinned_.slot), pinned_.head.generation, TokenCount{0},
                  TokenCount{kHonestTokens}),
          "the honest publish fails");
}

void HonestReader::check_bytes() {
  const core::ShardTables tables = tiny_.files.at(client_.shard).tables();
  std::size_t at = 0;
  for (const auto& [chunk, bits] : chunk_words_) {
    require(tables.chunk_word(chunk).load() == bits, "a pinned chunk has another place");
    const auto chunk_bytes = tables.chunk(chunk);
    require(std::memcmp(chunk_bytes.data(), bytes_.data() + at, chunk_bytes.size()) == 0,
            "bytes that are pinned have changed");
    at += chunk_bytes.size();
  }
}

void HonestReader::check_context() {
  check_bytes();
  const auto now = tiny_.find(client_.shard, honest_session());
  require(now && now->slot == pinned_.slot && now->head == pinned_.head && now->epoch == 1 &&
              now->length == LengthWord{pinned_.head.generation, TokenCount{kHonestTokens}},
          "the honest context is another");
}

void HonestReader::check_that_it_can_work() {
  const auto& recipe = tiny_.core.recipe_of(client_.shard);
  const auto told = tiny_.core.explain(client_, honest_session(), Epoch{1}, recipe.fingerprint(),
                                       TokenCount{kHonestTokens}, LengthMatch::exact);
  require(told.has_value() && told->slot == pinned_.slot, "the honest context is not found");
  const auto back =
      tiny_.core.truncate(client_, honest_session(), Epoch{1}, pinned_.head.generation,
                          TokenCount{kHonestTokens}, TokenCount{kHonestTokens - 1});
  require(back.has_value() && back->length == TokenCount{kHonestTokens - 1},
          "the honest client cannot truncate");
  tiny_.core.end_message(client_.shard);
  check_bytes();
}

}  // namespace hotkv::fuzz
