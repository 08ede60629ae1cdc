// Any word in any memory that clients can write, between the operations of clients of that shard:
// lengths, touches, pins, high-water marks. The daemon goes on, and another shard notices nothing.

#include <array>
#include <optional>
#include <variant>

#include "tests/fuzz/fuzz_input.hpp"
#include "tests/fuzz/tiny_shards.hpp"

namespace hotkv::fuzz {
namespace {

constexpr std::size_t kClients = 3;

class Fuzz {
 public:
  explicit Fuzz(FuzzInput input)
      : input_(input), shard_(tiny_.add_shard(1)), honest_(tiny_, tiny_.add_shard(2)) {
    for (auto& client : clients_) client = tiny_.attach(shard_);
  }

  void run() {
    for (int steps = 0; steps < 96 && !input_.is_done(); ++steps) {
      input_.below(2) == 0 ? scribble() : operate();
      drop_gone_clients();
      if (steps % 4 == 3) tiny_.verify();
      honest_.check_context();
    }
    while (tiny_.files.has_orders()) carry_out_an_order();
    tiny_.check();
    honest_.check_that_it_can_work();
    tiny_.check_that_all_comes_back();
  }

 private:
  [[nodiscard]] core::ShardTables tables() { return tiny_.files.at(shard_).tables(); }

  // ---- words

  SlotIndex any_slot() {
    // The first few are in use.
    return SlotIndex{input_.below(8) == 0 ? input_.byte() % tables().capacities().slot_count
                                          : input_.below(4)};
  }
  Generation near_generation(SlotIndex slot) {
    const std::uint32_t now = load_head(tables().slot(slot).head).generation.value();
    return Generation{now + input_.below(4) - 2};
  }

  void scribble() {
    const SlotIndex slot = any_slot();
    ClientPage& page = tables().untrusted_page(PageIndex{input_.below(kClients)});
    switch (input_.below(8)) {
      case 0:
        tables().length_word(slot).store(
            LengthWord{near_generation(slot), TokenCount{input_.number()}}.bits());
        break;
      case 1: tables().length_word(slot).store(input_.wide_number()); break;
      case 2: tables().untrusted_touch(slot).store(input_.number()); break;
      case 3:
        tables().untrusted_touch(slot).store(touch_ticks(tiny_.now_ms) + input_.below(64) - 32);
        break;
      case 4: page.high_water.store(input_.number()); break;
      case 5: {
        const std::uint32_t pin = input_.byte() % kPinsPerPage;
        page.pins[pin].store(PinWord{slot, near_generation(slot)}.bits());
        page.high_water.store(std::max(page.high_water.load(), pin + 1));
        break;
      }
      case 6:
        page.pins[input_.raw<std::uint16_t>() % kPinsPerPage].store(input_.wide_number());
        break;
      default: {
        const std::uint64_t value = input_.wide_number();
        for (AtomicWord& pin : page.pins) pin.store(value);
        page.high_water.store(kPinsPerPage);
      }
    }
  }

  // ---- operations

  void operate() {
    const core::ClientId client = clients_[input_.below(kClients)];
    const SessionId& id = session(input_.byte());
    const auto now = tiny_.find(shard_, id);
    const Epoch epoch{now && input_.below(8) != 0 ? now->epoch : 1 + input_.below(3)};
    const Generation generation{(now ? now->head.generation.value() : 0) -
                                (input_.byte() >= 0xe0 ? 1u : 0u)};
    const Fingerprint& fingerprint = tiny_recipe().fingerprint();
    core::Core& core = tiny_.core;
    switch (input_.below(9)) {
      case 0: check(core.open(client, id, epoch, fingerprint)); break;
      case 1:
        append(core.append(client, id, epoch, generation, TokenCount{input_.number()}));
        break;
      case 2: {
        const auto length =
            core.explain(client, id, epoch, fingerprint, TokenCount{0}, LengthMatch::any);
        check(core.truncate(client, id, epoch, generation,
                            length ? length->length : TokenCount{input_.number()},
                            TokenCount{input_.number()}));
        break;
      }
      case 3: (void)core.close(client, id, epoch, generation); break;
      case 4: (void)core.release(client, id, epoch, Generation{0}, SlotIndex{0}); break;
      case 5:
        check(core.explain(client, id, epoch, fingerprint, TokenCount{input_.number()},
                           static_cast<LengthMatch>(1 + input_.below(3))));
        break;
      case 6: carry_out_an_order(); break;
      case 7:
        tiny_.now_ms += input_.byte() * 16;
        core.tick();
        break;
      default: end_a_client(input_.below(kClients), input_.below(3));
    }
    core.end_message(shard_);
    for (const core::MemoryOrder& order : core.take_memory_orders()) {
      require(tiny_.files.run(order).has_value(), "an order is refused");
    }
    for (const core::FinishedGrant& grant : core.take_finished_grants()) check(grant.outcome);
  }

  void append(const std::variant<core::Position, Refusal, core::Waiting>& answer) {
    if (const auto* position = std::get_if<core::Position>(&answer)) check(*position);
  }
  // Whatever stands in the words, what is told of a context lies within its chain.
  void check(const core::Outcome<core::Position>& outcome) {
    if (!outcome) return;
    const core::Position& at = *outcome;
    std::uint64_t room = 0;
    if (at.tip.is_chunk()) {
      const auto word = ChunkWord::from_bits(tables().chunk_word(at.tip.chunk()).load());
      room = (std::uint64_t{word.ordinal} + 1) * tables().geometry().chunk_tokens;
    }
    require(at.length <= at.writable && at.writable.value() <= room, "a position beyond its chain");
  }

  void carry_out_an_order() {
    if (!tiny_.files.has_orders()) return;
    const std::uint32_t how = input_.below(8);
    auto done = tiny_.files.carry_out(how != 1, how > 1 || input_.is_done());
    tiny_.core.memory_order_done(done.id, std::move(done.result), done.punched);
    for (const core::MemoryOrder& order : tiny_.core.take_memory_orders()) {
      require(tiny_.files.run(order).has_value(), "an order is refused");
    }
    for (const core::FinishedGrant& grant : tiny_.core.take_finished_grants()) {
      check(grant.outcome);
    }
  }

  void end_a_client(std::size_t index, std::uint32_t how) {
    if (how != 0) tiny_.files.alive.erase(clients_[index]);
    if (how == 2) return;  // its mapping is gone, its socket is not
    tiny_.core.disconnected(clients_[index]);
    replace(index);
  }
  void drop_gone_clients() {
    for (const core::ClientId gone : tiny_.core.take_gone_clients()) {
      for (std::size_t i = 0; i < kClients; ++i) {
        if (clients_[i] != gone) continue;
        tiny_.core.disconnected(gone);
        replace(i);
      }
    }
  }
  // Another one attaches; where no page is left, one that lives on without a connection has to go.
  void replace(std::size_t index) {
    auto page = tiny_.core.attach(shard_, Access::write, 7, 9);
    if (!page) {
      std::erase_if(tiny_.files.alive, [&](core::ClientId client) {
        return client.shard == shard_ && std::ranges::find(clients_, client) == clients_.end();
      });
      tiny_.files.alive.erase(clients_[index]);
      page = tiny_.core.attach(shard_, Access::write, 7, 9);
    }
    require(page.has_value(), "no page is free though every client of it is gone");
    clients_[index] = page->client;
    tiny_.files.alive.insert(page->client);
  }

  FuzzInput input_;
  TinyCore tiny_;
  core::ShardId shard_;
  HonestReader honest_;
  std::array<core::ClientId, kClients> clients_{};
};

}  // namespace
}  // namespace hotkv::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hotkv::fuzz::Fuzz(hotkv::fuzz::FuzzInput({data, size})).run();
  return 0;
}
