#include "daemon/core/kept_heads.hpp"

#include "shared/check.hpp"

namespace hotkv::core {

KeptHead KeptHeads::read(std::uint32_t record) const {
  const KeptHeadRecord& r = tables_.kept_heads()[record];
  return {SlotIndex{r.slot.load(std::memory_order_relaxed) - 1},
          HeadWord::from_bits(r.head.load(std::memory_order_relaxed))};
}

bool KeptHeads::has_room() const {
  return !unused_.empty() || never_used_ < tables_.kept_heads().size();
}

void KeptHeads::keep(SlotIndex slot, HeadWord head) {
  HOTKV_CHECK(has_room(), "no record for a kept head");
  std::uint32_t record = never_used_;
  if (unused_.empty()) {
    ++never_used_;
  } else {
    record = unused_.back();
    unused_.pop_back();
  }
  KeptHeadRecord& r = tables_.kept_heads()[record];
  gate_.store(r.head, head.bits());
  gate_.store(r.slot, slot.value() + 1);
  records_.push_back(record);
}

void KeptHeads::drop_if(const std::function<bool(const KeptHead&)>& is_over,
                        const std::function<void(const KeptHead&)>& let_go) {
  for (std::size_t i = 0; i < records_.size();) {
    const std::uint32_t record = records_[i];
    const KeptHead kept = read(record);
    if (!is_over(kept)) {
      ++i;
      continue;
    }
    gate_.store(tables_.kept_heads()[record].slot, 0);
    records_[i] = records_.back();
    records_.pop_back();
    unused_.push_back(record);
    let_go(kept);
  }
}

std::vector<KeptHead> KeptHeads::all() const {
  std::vector<KeptHead> heads;
  heads.reserve(records_.size());
  for (const std::uint32_t record : records_) heads.push_back(read(record));
  return heads;
}

void KeptHeads::rebuild() {
  records_.clear();
  unused_.clear();
  never_used_ = 0;
  const auto count = static_cast<std::uint32_t>(tables_.kept_heads().size());
  for (std::uint32_t record = 0; record < count; ++record) {
    if (tables_.kept_heads()[record].slot.load(std::memory_order_relaxed) == 0) continue;
    for (; never_used_ < record; ++never_used_) unused_.push_back(never_used_);
    never_used_ = record + 1;
    records_.push_back(record);
  }
}

}  // namespace hotkv::core
