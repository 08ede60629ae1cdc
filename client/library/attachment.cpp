#include "client/library/attachment.hpp"

#include <time.h>

#include <algorithm>
#include <utility>

#include "client/library/socket_path.hpp"

namespace hotkv {
namespace {

template <class T>
T* place_in(const Mapping& mapping, ByteOffset offset) {
  return reinterpret_cast<T*>(mapping.bytes().data() + offset.value());
}

client::SessionIndex session_index(const client::ShardFacts& facts, const Mapping& tables) {
  return {std::span(place_in<const IndexEntry>(tables, facts.layout.index),
                    facts.capacities.index_count),
          std::span(place_in<const SlotRecord>(tables, facts.layout.slots),
                    facts.capacities.slot_count),
          facts.hash_key};
}

// A wait without end is asked for with a huge number, and that must not wrap.
Deadline deadline_after(std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);
  return std::chrono::steady_clock::now() + std::min(wait, kLongest);
}

}  // namespace

std::expected<std::shared_ptr<Attachment>, Error> Attachment::attach(const ClientOptions& options,
                                                                     const Recipe& recipe) {
  const std::string path =
      options.socket_path.empty() ? client::default_socket_path() : options.socket_path;
  const Deadline deadline = deadline_after(options.deadline);
  // Before the first descriptor and mapping, so that the handlers of fork are in place.
  const client::ForkGuard guard;
  auto shard = client::attach_shard(path, recipe, options.access, deadline);
  if (!shard) return std::unexpected(std::move(shard.error()));
  auto connection = client::Connection::start(std::move(shard->socket), shard->facts.boot_token);
  if (!connection) return std::unexpected(std::move(connection.error()));
  return std::shared_ptr<Attachment>(
      new Attachment(options, recipe, shard->facts, std::move(shard->mappings),
                     std::move(*connection)),
      [](Attachment* attachment) {
        if (!attachment->is_foreign()) delete attachment;
      });
}

Attachment::Attachment(const ClientOptions& options, const Recipe& recipe, client::ShardFacts facts,
                       client::ShardMappings mappings,
                       std::unique_ptr<client::Connection> connection)
    : recipe_(recipe),
      access_(options.access),
      deadline_(options.deadline),
      facts_(facts),
      mappings_(std::move(mappings)),
      index_(session_index(facts_, mappings_.tables)),
      lengths_(place_in<LengthLine>(mappings_.arena, ByteOffset{0})),
      chunks_(place_in<std::byte>(mappings_.arena, facts_.layout.chunks)),
      touch_words_(place_in<TouchWord>(mappings_.touch_words, ByteOffset{0})),
      pins_(*place_in<ClientPage>(mappings_.page, ByteOffset{0})),
      chains_(std::span(place_in<const AtomicWord>(mappings_.tables, facts_.layout.chunk_words),
                        facts_.capacities.chunk_count)),
      populated_(facts_.capacities.chunk_count),
      leases_(*connection),
      connection_(std::move(connection)) {}

Deadline Attachment::deadline_from_now() const {
  return deadline_after(deadline_);
}

Writer Attachment::make_writer(client::ChainRef chain, client::Pin pin,
                               const client::Position& position, TokenCount size) {
  return Writer(shared_from_this(), std::move(chain), std::move(pin).release(), position.slot,
                position.generation, position.length, size);
}

void Attachment::touch(SlotIndex slot) const {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  const auto now_ms = static_cast<std::uint64_t>(now.tv_sec) * 1000 +
                      static_cast<std::uint64_t>(now.tv_nsec) / 1'000'000;
  const std::uint32_t ticks = touch_ticks(now_ms);
  TouchWord& word = touch_words_[slot.value()];
  // Relaxed: a hint of age that orders nothing.
  if (word.load(std::memory_order_relaxed) != ticks) word.store(ticks, std::memory_order_relaxed);
}

}  // namespace hotkv
