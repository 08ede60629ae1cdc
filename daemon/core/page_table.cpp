#include "daemon/core/page_table.hpp"

#include <algorithm>

#include "shared/check.hpp"
#include "shared/fault_point.hpp"

namespace hotkv::core {

namespace {

// All of it: the mark is the client's to lower.
void clear(ClientPage& untrusted) {
  for (AtomicWord& pin : untrusted.pins) pin.store(0, std::memory_order_relaxed);
  untrusted.high_water.store(0, std::memory_order_release);
}

}  // namespace

PageTable::PageTable(const ShardTables& tables, StoreGate& gate)
    : tables_(tables), gate_(gate), clients_(tables.capacities().page_count) {}

std::optional<PageIndex> PageTable::take(Access access, std::uint32_t pid, std::uint64_t cookie) {
  const auto found = std::ranges::find(clients_, false, &Client::taken);
  if (found == clients_.end()) return std::nullopt;
  const PageIndex page{static_cast<std::uint32_t>(found - clients_.begin())};
  clear(tables_.untrusted_page(page));  // whoever maps the file may have written on it since
  PageRecord& r = tables_.page_record(page);
  gate_.store(r.access, static_cast<std::uint32_t>(access));
  gate_.store(r.cookie, cookie);
  gate_.store(r.pid, pid);
  gate_.store(r.state, static_cast<std::uint32_t>(PageState::taken));
  found->taken = true;
  found->connected = true;
  found->claims = true;
  ++taken_count_;
  taken_below_ = std::max(taken_below_, page.value() + 1);
  return page;
}

void PageTable::reconnect(PageIndex page) {
  Client& client = clients_[page.value()];
  HOTKV_CHECK(client.taken && client.claims && !client.connected, "a page has two clients");
  client.connected = true;
  client.adopted = false;
}

void PageTable::clear_pins(PageIndex page) {
  clear(tables_.untrusted_page(page));
}

void PageTable::end_claims(PageIndex page) {
  Client& client = clients_[page.value()];
  HOTKV_CHECK(client.taken && client.held_slots.empty(), "a client with leases loses its page");
  if (!client.claims) return;
  clear(tables_.untrusted_page(page));
  client.claims = false;
  if (!client.connected) free(page);
}

void PageTable::disconnect(PageIndex page) {
  clients_[page.value()].connected = false;
  if (!clients_[page.value()].claims) free(page);
}

void PageTable::free(PageIndex page) {
  HOTKV_CHECK(clients_[page.value()].held_slots.empty(), "a page with leases is freed");
  gate_.store(tables_.page_record(page).state, static_cast<std::uint32_t>(PageState::free));
  clients_[page.value()].taken = false;
  clients_[page.value()].adopted = false;
  --taken_count_;
}

Access PageTable::access(PageIndex page) const {
  const auto number = tables_.page_record(page).access.load(std::memory_order_relaxed);
  return number == static_cast<std::uint32_t>(Access::write) ? Access::write : Access::read;
}

std::uint64_t PageTable::cookie(PageIndex page) const {
  return tables_.page_record(page).cookie.load(std::memory_order_relaxed);
}

std::uint32_t PageTable::pid(PageIndex page) const {
  return tables_.page_record(page).pid.load(std::memory_order_relaxed);
}

std::vector<PageIndex> PageTable::taken() const {
  std::vector<PageIndex> pages;
  for (std::uint32_t i = 0; i < taken_below_; ++i) {
    if (clients_[i].taken) pages.push_back(PageIndex{i});
  }
  return pages;
}

PinSet PageTable::scan_pins() const {
  std::vector<std::uint64_t> pins;
  if (HOTKV_IS_PLANTED("ignore-pins")) return PinSet(pins);
  for (std::uint32_t i = 0; i < taken_below_; ++i) {
    if (!clients_[i].taken || !clients_[i].claims) continue;
    const ClientPage& untrusted = tables_.untrusted_page(PageIndex{i});
    const std::uint32_t used =
        std::min(untrusted.high_water.load(std::memory_order_seq_cst), kPinsPerPage);
    for (std::uint32_t word = 0; word < used; ++word) {
      const auto pin = load_untrusted_pin(untrusted.pins[word]);
      if (!pin || pin->slot.value() >= tables_.capacities().slot_count) continue;
      if (pins.empty() || pins.back() != pin->bits()) pins.push_back(pin->bits());
    }
  }
  return PinSet(std::move(pins));
}

void PageTable::rebuild() {
  taken_count_ = 0;
  taken_below_ = 0;
  for (std::uint32_t i = 0; i < clients_.size(); ++i) {
    const auto state = tables_.page_record(PageIndex{i}).state.load(std::memory_order_relaxed);
    clients_[i] = Client{};
    clients_[i].taken = state == static_cast<std::uint32_t>(PageState::taken);
    if (!clients_[i].taken) continue;
    clients_[i].claims = true;
    clients_[i].adopted = true;
    ++taken_count_;
    taken_below_ = i + 1;
  }
}

}  // namespace hotkv::core
