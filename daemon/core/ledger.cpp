#include "daemon/core/ledger.hpp"

#include <algorithm>

#include "shared/check.hpp"

namespace hotkv::core {
namespace {

constexpr std::uint32_t kEmpty = 0;
constexpr std::uint32_t kValid = 1;

}  // namespace

std::optional<Ledger::Entry> Ledger::find(const SessionId& session) const {
  const auto found = records_.find(session);
  if (found == records_.end()) return std::nullopt;
  const LedgerRecord& r = record(found->second);
  Entry entry;
  entry.epoch = Epoch{r.epoch.load(std::memory_order_relaxed)};
  entry.fate = miss_reason_from_number(r.fate.load(std::memory_order_relaxed));
  entry.last_length = TokenCount{r.last_length.load(std::memory_order_relaxed)};
  entry.ended_ms = r.ended_ms.load(std::memory_order_relaxed);
  return entry;
}

void Ledger::set_ended(RecordIndex index, bool ended) {
  const std::pair key{record(index).ended_ms.load(std::memory_order_relaxed), index};
  if (ended) {
    ended_.insert(key);
  } else {
    ended_.erase(key);
  }
}

Ledger::RecordIndex Ledger::take_record(std::optional<std::uint64_t>& forgotten) {
  if (!unused_.empty()) {
    const RecordIndex index = unused_.back();
    unused_.pop_back();
    return index;
  }
  if (never_used_ < tables_.ledger().size()) return never_used_++;
  // There are more records than slots, so one of them belongs to a session that has ended.
  HOTKV_CHECK(!ended_.empty(), "a full ledger without an ended session");
  const auto [ended_ms, index] = *ended_.begin();
  forgotten = ended_ms;
  const auto session = read_session_id(record(index).id_bytes, record(index).id);
  HOTKV_CHECK(session.has_value(), "a ledger record without a session id");
  gate_.store(record(index).state, kEmpty);
  ended_.erase(ended_.begin());
  records_.erase(*session);
  return index;
}

std::optional<std::uint64_t> Ledger::remember(const SessionId& session, Epoch epoch,
                                              std::uint64_t now_ms) {
  std::optional<std::uint64_t> forgotten;
  const auto found = records_.find(session);
  if (found != records_.end()) {
    LedgerRecord& r = record(found->second);
    if (r.epoch.load(std::memory_order_relaxed) < epoch.value()) {
      // The fate is the lower epoch's; it must never be told of the higher one.
      if (r.fate.load(std::memory_order_relaxed) != 0) gate_.store(r.fate, 0);
      gate_.store(r.epoch, epoch.value());
    }
    return forgotten;
  }
  const RecordIndex index = take_record(forgotten);
  LedgerRecord& r = record(index);
  gate_.store(r.id_bytes, session.size_bytes());
  for (std::size_t i = 0; i < SessionId::kWords; ++i) gate_.store(r.id[i], session.words()[i]);
  gate_.store(r.epoch, epoch.value());
  gate_.store(r.last_length, 0);
  gate_.store(r.ended_ms, now_ms);
  gate_.store(r.fate, 0);
  gate_.store(r.state, kValid);  // last: a record is whole or it is not there
  records_.emplace(session, index);
  set_ended(index, true);  // until its context lives
  return forgotten;
}

void Ledger::bury(const SessionId& session, MissReason fate, TokenCount last_length,
                  std::uint64_t now_ms) {
  const auto found = records_.find(session);
  HOTKV_CHECK(found != records_.end(), "a live session is not in the ledger");
  LedgerRecord& r = record(found->second);
  set_ended(found->second, false);
  gate_.store(r.last_length, last_length.value());
  gate_.store(r.ended_ms, now_ms);
  gate_.store(r.fate, static_cast<std::uint32_t>(fate));
  set_ended(found->second, true);
}

void Ledger::revive(const SessionId& session) {
  const auto found = records_.find(session);
  HOTKV_CHECK(found != records_.end(), "a live session is not in the ledger");
  set_ended(found->second, false);
  LedgerRecord& r = record(found->second);
  if (r.fate.load(std::memory_order_relaxed) != 0) gate_.store(r.fate, 0);
}

void Ledger::protect(const SessionId& session) {
  const auto found = records_.find(session);
  HOTKV_CHECK(found != records_.end(), "a session to be protected is not in the ledger");
  set_ended(found->second, false);
}

void Ledger::rebuild(const LiveEpoch& live_epoch) {
  records_.clear();
  ended_.clear();
  unused_.clear();
  never_used_ = 0;
  const auto count = static_cast<RecordIndex>(tables_.ledger().size());
  for (RecordIndex index = 0; index < count; ++index) {
    const LedgerRecord& r = record(index);
    if (r.state.load(std::memory_order_relaxed) == kEmpty &&
        r.id_bytes.load(std::memory_order_relaxed) == 0) {
      continue;  // never used, or not for this file
    }
    for (; never_used_ < index; ++never_used_) unused_.push_back(never_used_);
    never_used_ = index + 1;
    const auto session = read_session_id(r.id_bytes, r.id);
    if (r.state.load(std::memory_order_relaxed) != kValid || !session) {
      drop(index);
      continue;
    }
    if (const auto earlier = records_.find(*session); earlier != records_.end()) {
      const auto is_of_live = [epoch = live_epoch(*session)](const LedgerRecord& one) {
        return one.fate.load(std::memory_order_relaxed) == 0 &&
               epoch == Epoch{one.epoch.load(std::memory_order_relaxed)};
      };
      if (!is_of_live(r) || is_of_live(record(earlier->second))) {
        drop(index);
        continue;
      }
      set_ended(earlier->second, false);
      drop(earlier->second);
    }
    records_.insert_or_assign(*session, index);
    set_ended(index, true);
  }
}

void Ledger::drop(RecordIndex index) {
  gate_.store(record(index).state, kEmpty);
  unused_.push_back(index);
}

}  // namespace hotkv::core
