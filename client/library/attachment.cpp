#include "client/library/attachment.hpp"

#include <time.h>

#include <utility>

#include "client/library/current_attachment.hpp"

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

}  // namespace

std::shared_ptr<Attachment> Attachment::make(std::shared_ptr<client::CurrentAttachment> client,
                                             client::AttachedShard shard,
                                             std::shared_ptr<client::Wakeup> wakeup) {
  auto connection = std::make_unique<client::Connection>(std::move(shard.socket),
                                                         shard.facts.boot_token, std::move(wakeup));
  return {new Attachment(std::move(client), shard.facts, std::move(shard.mappings),
                         std::move(connection)),
          [](Attachment* attachment) {
            if (!attachment->is_foreign()) delete attachment;
          }};
}

Attachment::Attachment(std::shared_ptr<client::CurrentAttachment> client, client::ShardFacts facts,
                       client::ShardMappings mappings,
                       std::unique_ptr<client::Connection> connection)
    : client_(std::move(client)),
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

const Recipe& Attachment::recipe() const {
  return client_->recipe();
}

Deadline Attachment::deadline_from_now() const {
  return client::deadline_after(client_->options().deadline);
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
