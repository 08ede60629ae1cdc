#include "tests/support/core_harness.hpp"

#include <algorithm>

#include "shared/session_hash.hpp"

namespace hotkv::test {

SessionId id(std::string_view text) {
  return SessionId::from(text).value();
}

Recipe small_recipe(LayerRange layers, std::string model) {
  return Recipe::make({"llama", std::move(model), DType::f16, 2, 8, 8, layers}).value();
}

ShardFilesInMemory::ShardFilesInMemory(const core::ShardPlan& plan)
    : tables(plan.layout.tables_bytes),
      arena(plan.layout.arena_bytes),
      pages(plan.layout.pages_bytes),
      capacities(plan.capacities),
      geometry(plan.geometry) {}

core::ShardMemory ShardFilesInMemory::memory() const {
  return {tables.bytes(), arena.bytes(), pages.bytes()};
}

core::Limits CoreHarness::small_limits() {
  core::Limits limits;
  limits.max_bytes = 64 * 4096;
  limits.session_cap = 16;
  limits.ttl_ms = 60'000;
  limits.tombstones = 64;
  limits.clients_per_shard = 4;
  limits.chunk_tokens = 16;
  return limits;
}

CoreHarness::CoreHarness(core::Limits the_limits)
    : limits(the_limits),
      core(std::make_unique<core::Core>(
          limits, [this] { return now_ms; }, liveness)) {}

core::ShardId CoreHarness::add_shard(const Recipe& recipe, std::uint32_t owner_uid) {
  const auto plan = core->plan_shard(owner_uid, recipe).value();
  auto memory = std::make_shared<ShardFilesInMemory>(plan);
  const auto shard = core->add_shard(plan, memory->memory(), {1 + files.size(), {7, 11}});
  files.emplace(shard, std::move(memory));
  return shard;
}

core::ClientId CoreHarness::attach(core::ShardId shard, Access access) {
  const std::uint32_t pid = next_pid_++;
  return core->attach(shard, access, pid, pid).value().client;
}

void CoreHarness::punch(ShardFilesInMemory& memory, const core::ExtentRange& range) {
  const Geometry& g = memory.geometry;
  const auto layout = FileLayout::of(memory.capacities, g);
  const std::uint64_t first = (range.arena_offset.value() - layout.chunks.value()) / g.extent_bytes;
  for (std::uint64_t i = 0; i < range.size_bytes / g.extent_bytes; ++i) {
    const bool had_memory = memory.provisioned.erase(static_cast<std::uint32_t>(first + i)) != 0;
    if (!had_memory) continue;
    const std::uint64_t offset = range.arena_offset.value() + i * g.extent_bytes;
    std::ranges::fill(memory.arena.bytes().subspan(offset, g.extent_bytes), std::byte{0});
  }
}

void CoreHarness::settle() {
  const auto extents =
      [this](const core::ExtentRange& range) -> std::pair<ShardFilesInMemory&, std::uint32_t> {
    ShardFilesInMemory& memory = *files.at(range.shard);
    const auto layout = FileLayout::of(memory.capacities, memory.geometry);
    return {memory,
            static_cast<std::uint32_t>((range.arena_offset.value() - layout.chunks.value()) /
                                       memory.geometry.extent_bytes)};
  };
  for (auto orders = core->take_memory_orders(); !orders.empty();
       orders = core->take_memory_orders()) {
    for (const auto& order : orders) {
      for (const auto& range : order.punch) {
        punch(*files.at(range.shard), range);
      }
      for (const auto& range : order.provision) {
        auto [memory, extent] = extents(range);
        memory.provisioned.insert(extent);
      }
      core->memory_order_done(order.id, {}, true);
    }
  }
}

void CoreHarness::restart() {
  core = std::make_unique<core::Core>(
      limits, [this] { return now_ms; }, liveness);
  std::map<core::ShardId, std::shared_ptr<ShardFilesInMemory>> kept;
  for (const auto& [old_id, memory] : files) {
    const auto adopted = core->adopt_shard(memory->memory(), default_certified_architectures());
    for (const auto& range : core->unaccounted_extents(adopted.value())) punch(*memory, range);
    kept.emplace(adopted.value(), memory);
  }
  files = std::move(kept);
}

core::ShardTables CoreHarness::tables(core::ShardId shard) const {
  const auto& memory = files.at(shard);
  return {memory->memory(), memory->capacities, memory->geometry};
}

CoreClient::CoreClient(CoreHarness& harness, core::ShardId shard, Access access)
    : client(harness.attach(shard, access)), harness_(harness) {}

core::Outcome<core::Position> CoreClient::open(std::string_view session, std::uint64_t epoch) {
  auto outcome = harness_.core->open(client, id(session), Epoch{epoch},
                                     harness_.core->recipe_of(client.shard).fingerprint());
  harness_.core->end_message(client.shard);
  return outcome;
}

std::optional<Generation> CoreClient::generation(std::string_view session) const {
  const auto tables = harness_.tables(client.shard);
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    const SlotRecord& slot = tables.slot(SlotIndex{i});
    const HeadWord head = load_head(slot.head);
    if (!head.tip.is_free() && slot_has_session(slot, id(session))) return head.generation;
  }
  return std::nullopt;
}

core::Outcome<core::Position> CoreClient::grant(std::string_view session, std::uint64_t epoch,
                                                std::uint32_t up_to) {
  auto answer =
      harness_.core->append(client, id(session), Epoch{epoch},
                            generation(session).value_or(Generation{0}), TokenCount{up_to});
  harness_.core->end_message(client.shard);
  if (const auto* position = std::get_if<core::Position>(&answer)) return *position;
  if (auto* refusal = std::get_if<Refusal>(&answer)) return std::unexpected(std::move(*refusal));
  const std::uint64_t ticket = std::get<core::Waiting>(answer).ticket;
  harness_.settle();
  for (auto& finished : harness_.core->take_finished_grants()) {
    if (finished.ticket == ticket) return std::move(finished.outcome);
  }
  std::abort();  // a settled order always finishes its append
}

std::optional<CoreView> view_of(const core::ShardTables& tables, core::ShardId shard,
                                std::uint32_t pin, SlotIndex slot, Generation generation) {
  const auto snapshot = confirm_pin(tables.slot(slot).head, tables.length_word(slot), generation);
  if (!snapshot) return std::nullopt;
  CoreView view{shard, pin, slot, generation, snapshot->length, {}};
  for (Tip tip = snapshot->tip; tip.is_chunk();) {
    view.chunks.push_back(tip.chunk());
    const auto word =
        ChunkWord::from_bits(tables.chunk_word(tip.chunk()).load(std::memory_order_acquire));
    tip = word.previous ? Tip::at(*word.previous) : Tip::empty();
  }
  std::ranges::reverse(view.chunks);
  return view;
}

std::optional<CoreView> CoreClient::pin(SlotIndex slot, HeadWord head) {
  const auto tables = harness_.tables(client.shard);
  ClientPage& page = tables.untrusted_page(client.page);
  std::uint32_t pin = 0;
  for (; pin < kPinsPerPage; ++pin) {
    if (page.high_water.load() <= pin) page.high_water.store(pin + 1);
    if (claim_pin(page.pins[pin], {slot, head.generation})) break;
  }
  auto view = view_of(tables, client.shard, pin, slot, head.generation);
  if (!view) hotkv::unpin(page.pins[pin]);
  return view;
}

std::optional<CoreView> CoreClient::pin_for_writing(const core::Position& position) {
  return pin(position.slot, {position.generation, position.tip});
}

std::span<std::byte> CoreClient::row(const CoreView& view, std::uint32_t position,
                                     std::uint32_t layer, Half half) const {
  const auto tables = harness_.tables(view.shard);
  const Geometry& g = tables.geometry();
  const std::uint64_t bytes = half == Half::keys ? g.key_row_bytes : g.value_row_bytes;
  const ByteOffset tensor = half == Half::keys ? g.keys_offset(layer) : g.values_offset(layer);
  return tables.chunk(view.chunks.at(position / g.chunk_tokens))
      .subspan(tensor.value() + position % g.chunk_tokens * bytes, bytes);
}

void CoreClient::write(std::string_view session, std::uint64_t epoch, const CoreView& writer,
                       std::uint32_t from, std::uint32_t to, std::uint32_t version) {
  const std::uint32_t layers = harness_.tables(writer.shard).geometry().layer_count;
  for (std::uint32_t position = from; position < to; ++position) {
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (const Half half : {Half::keys, Half::values}) {
        fill_row(row(writer, position, layer, half),
                 {session, epoch, position, layer, half, version});
      }
    }
  }
}

bool CoreClient::publish(const CoreView& writer, std::uint32_t from, std::uint32_t to) {
  return hotkv::publish(harness_.tables(client.shard).length_word(writer.slot), writer.generation,
                        TokenCount{from}, TokenCount{to});
}

core::Outcome<TokenCount> CoreClient::append(std::string_view session, std::uint64_t epoch,
                                             std::uint32_t tokens, std::uint32_t version) {
  std::uint32_t from = 0;
  if (const auto now = harness_.core->explain(client, id(session), Epoch{epoch},
                                              harness_.core->recipe_of(client.shard).fingerprint(),
                                              TokenCount{0}, LengthMatch::any)) {
    from = now->length.value();
  }
  auto position = grant(session, epoch, from + tokens);
  if (!position) return std::unexpected(std::move(position.error()));
  const auto writer = pin_for_writing(*position);
  if (!writer) return std::unexpected(Error{ErrorCode::lease_lost, "append", {}, "pin"});
  write(session, epoch, *writer, from, from + tokens, version);
  const bool published = publish(*writer, from, from + tokens);
  unpin(*writer);
  if (!published) return std::unexpected(Error{ErrorCode::lease_lost, "append", {}, "publish"});
  return TokenCount{from + tokens};
}

core::Outcome<core::Position> CoreClient::truncate(std::string_view session, std::uint64_t epoch,
                                                   std::uint32_t to) {
  TokenCount from{0};
  if (const auto now = harness_.core->explain(client, id(session), Epoch{epoch},
                                              harness_.core->recipe_of(client.shard).fingerprint(),
                                              TokenCount{0}, LengthMatch::any)) {
    from = now->length;
  }
  auto outcome =
      harness_.core->truncate(client, id(session), Epoch{epoch},
                              generation(session).value_or(Generation{0}), from, TokenCount{to});
  harness_.core->end_message(client.shard);
  return outcome;
}

core::Outcome<void> CoreClient::release(std::string_view session, std::uint64_t epoch) {
  auto outcome =
      harness_.core->release(client, id(session), Epoch{epoch}, Generation{0}, SlotIndex{0});
  harness_.core->end_message(client.shard);
  return outcome;
}

core::Outcome<void> CoreClient::close(std::string_view session, std::uint64_t epoch) {
  auto outcome = harness_.core->close(client, id(session), Epoch{epoch},
                                      generation(session).value_or(Generation{0}));
  harness_.core->end_message(client.shard);
  return outcome;
}

core::Outcome<CoreView> CoreClient::resolve(std::string_view session, std::uint64_t epoch,
                                            std::uint32_t expected) {
  const auto tables = harness_.tables(client.shard);
  for (std::uint32_t i = 0; i < tables.capacities().slot_count; ++i) {
    const SlotIndex slot{i};
    const HeadWord head = load_head(tables.slot(slot).head);
    if (head.tip.is_free() || !slot_has_session(tables.slot(slot), id(session)) ||
        tables.slot(slot).epoch.load() != epoch) {
      continue;
    }
    auto view = pin(slot, head);
    if (!view) continue;
    if (view->length == TokenCount{expected}) {
      tables.untrusted_touch(slot).store(touch_ticks(harness_.now_ms));
      return *view;
    }
    unpin(*view);
  }
  auto told = harness_.core->explain(client, id(session), Epoch{epoch},
                                     harness_.core->recipe_of(client.shard).fingerprint(),
                                     TokenCount{expected}, LengthMatch::exact);
  if (!told) return std::unexpected(std::move(told.error()));
  return std::unexpected(Error{ErrorCode::shard_damaged, "resolve", {}, "memory and core differ"});
}

void CoreClient::unpin(const CoreView& view) {
  hotkv::unpin(harness_.tables(view.shard).untrusted_page(client.page).pins[view.pin]);
}

std::size_t CoreClient::wrong_bytes(std::string_view session, std::uint64_t epoch,
                                    const CoreView& view,
                                    const std::vector<std::uint32_t>& versions) const {
  std::size_t wrong = 0;
  const std::uint32_t layers = harness_.tables(view.shard).geometry().layer_count;
  for (std::uint32_t position = 0; position < view.length.value(); ++position) {
    const std::uint32_t version = position < versions.size() ? versions[position] : 0;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      for (const Half half : {Half::keys, Half::values}) {
        wrong += bench::wrong_bytes(row(view, position, layer, half),
                                    {session, epoch, position, layer, half, version});
      }
    }
  }
  return wrong;
}

void CoreClient::hang_up() {
  harness_.core->disconnected(client);
}

void CoreClient::die() {
  harness_.liveness.gone.insert(client);
  harness_.core->disconnected(client);
}

}  // namespace hotkv::test
