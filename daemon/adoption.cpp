#include "daemon/adoption.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "daemon/platform/page_lock.hpp"
#include "shared/fault_point.hpp"

namespace hotkv {
namespace {

// A lock anywhere in the pages is a client that still maps its page. Of files that no shard is made
// of the places of pages are not known. The first byte is the store's (ServiceManager::is_kept).
bool is_mapped_by_a_client(const std::vector<platform::MemoryFile>& files) {
  return std::ranges::any_of(files, [](const platform::MemoryFile& file) {
    if (file.role() != "pages" || file.size_bytes() < 2) return false;
    return platform::is_range_locked(file.fd(), {1, file.size_bytes() - 1}).value_or(true);
  });
}

std::uint64_t allocated_bytes(const platform::MemoryFile& file) {
  return file.allocated_bytes().value_or(0);
}

std::uint64_t allocated_bytes(const std::vector<platform::MemoryFile>& files) {
  std::uint64_t bytes = 0;
  for (const platform::MemoryFile& file : files) bytes += allocated_bytes(file);
  return bytes;
}

}  // namespace

void Adoption::run() {
  auto kept = manager_.take_kept();
  if (!kept) warn("adoption-failed", kept.error());
  KeptFiles files = sort_kept(kept ? *std::move(kept) : std::vector<platform::KeptDescriptor>{});
  for (RefusedFiles& refused : files.refused) refuse(std::move(refused));
  count_left_over();  // what nobody maps leaves the store, before anything new comes into it
  begin_counting(std::move(files.failed_adoptions));
  adopt_or_refuse(std::move(files.shards));
  count_left_over();
  constexpr std::size_t kAtOnce = std::numeric_limits<std::size_t>::max();
  files_.punch(core_.shrink_to_limits(kAtOnce));
  if (failed_) {
    if (auto ended = failed_->end(); !ended) warn("adoption-failed", ended.error());
  }
  log_adopted();
  if (!manager_.running_under_systemd()) {
    log_.info("event=restart-is-cold cause=\"no service manager keeps the memory\"");
  }
}

void Adoption::begin_counting(std::vector<platform::MemoryFile> kept) {
  if (!kept.empty()) {
    failed_.emplace(std::move(kept.front()));
    return;
  }
  auto made = FailedAdoptions::none();
  if (!made) return warn("adoption-failed", made.error());
  failed_.emplace(*std::move(made));
  const platform::MemoryFile* const file = &failed_->file();
  if (auto sent = manager_.keep(FailedAdoptions::kRole, std::span(&file, 1)); !sent) {
    warn("memory-not-kept", sent.error());
  }
}

void Adoption::adopt_or_refuse(std::vector<KeptShard> shards) {
  if (shards.empty()) return;
  const std::uint32_t failures = failed_ ? failed_->count() : 0;
  if (failures >= FailedAdoptions::kMax) {
    for (KeptShard& shard : shards) {
      Error reason{ErrorCode::shard_damaged, "adopt", shard.name,
                   std::to_string(failures) + " adoptions in a row did not come to their end", 0};
      refuse(std::move(shard), std::move(reason));
    }
    return;
  }
  if (failed_) {
    if (auto begun = failed_->begin(); !begun) warn("adoption-failed", begun.error());
  }
  for (KeptShard& shard : shards) adopt(std::move(shard));
  core_.tick();  // whose mapping is gone, whose time is up
  while (core_.has_leases_to_end()) core_.end_some_leases();  // nobody waits for a turn yet
}

void Adoption::adopt(KeptShard kept) {
  const auto memory = files_.map_kept(kept);
  if (!memory) return refuse(std::move(kept), memory.error());
  const auto shard = take_over(*memory);
  HOTKV_DIE_IF_PLANTED("die-in-adoption");
  if (!shard) {
    files_.give_up_kept(kept);
    return refuse(std::move(kept), shard.error());
  }
  files_.keep_adopted(*shard, core_.layout_of(*shard));
  files_.punch(core_.unaccounted_extents(*shard));
  ++adopted_shards_;
}

void Adoption::log_adopted() {
  if (adopted_shards_ == 0) return;
  for (const core::ShardInfo& info : core_.status().shards) {
    log_.info(
        "event=adopted boot_token={:016x} owner_uid={} model=\"{}\" layers={}-{} contexts={} "
        "clients={} lost={} bytes={}",
        info.boot_token, info.key.owner_uid, escape_bytes(info.key.model_id), info.key.layers.first,
        info.key.layers.last, info.contexts, info.clients,
        info.counters.ended[static_cast<std::size_t>(MissReason::lost_in_restart)],
        info.account.provisioned);
  }
}

std::expected<core::ShardId, Error> Adoption::take_over(core::ShardMemory memory) {
  const auto shard = core_.adopt_shard(memory, certified_architectures_);
  if (!shard) return shard;
  const auto broken = core_.verify(*shard);
  if (!broken) return shard;
  core_.forget_shard(*shard);
  return std::unexpected(Error{ErrorCode::shard_damaged, "adopt", "shard", *broken, 0});
}

void Adoption::refuse(KeptShard kept, Error reason) {
  mark_given_up(kept.tables);
  std::vector<platform::MemoryFile> files;
  files.push_back(std::move(kept.tables));
  files.push_back(std::move(kept.arena));
  files.push_back(std::move(kept.pages));
  refuse({std::move(kept.name), std::move(reason), std::move(files)});
}

void Adoption::refuse(RefusedFiles refused) {
  ++refused_shards_;
  warn("adoption-refused", refused.reason);
  const std::uint64_t bytes = allocated_bytes(refused.files);
  left_over_.push_back({std::move(refused.name), std::move(refused.files), bytes});
}

void Adoption::count_left_over() {
  std::uint64_t bytes = 0;
  std::erase_if(left_over_, [&](const LeftOver& each) {
    if (is_mapped_by_a_client(each.files)) {
      bytes += std::min(each.bytes, allocated_bytes(each.files));
      return false;
    }
    if (auto gone = manager_.let_go(each.name); !gone) warn("service-manager", gone.error());
    return true;
  });
  core_.set_left_over_bytes(bytes);
}

void Adoption::tick() {
  count_left_over();
  // Two megabytes each at most take some milliseconds together.
  constexpr std::size_t kExtentsOfATick = 64;
  files_.punch(core_.shrink_to_limits(kExtentsOfATick));
  if (!manager_.running_under_systemd()) return;
  if (auto sent = manager_.flush(); !sent) warn("service-manager", sent.error());
  find_out_what_is_kept();
}

void Adoption::find_out_what_is_kept() {
  constexpr const char* kRemedy =
      "set FileDescriptorStoreMax= to six times max_shards and one more";
  for (const std::string& name : files_.find_not_kept()) {
    log_.error(
        "event=memory-not-kept object={} cause=\"the service manager dropped it: a restart will "
        "lose it; {}\"",
        name, kRemedy);
  }
  // As with shards: a second is the manager's, and what waits here looks kept.
  if (counter_ != Restart::unknown || !failed_ || manager_.has_waiting() || ++looks_ < 2) return;
  const bool kept = platform::ServiceManager::is_kept(failed_->file()).value_or(false);
  counter_ = kept ? Restart::keeps : Restart::cold;
  if (kept) return;
  log_.error(
      "event=memory-not-kept object={} cause=\"the service manager dropped it: it keeps nothing or "
      "not all; {}\"",
      FailedAdoptions::kRole, kRemedy);
}

Adoption::Restart Adoption::restart() const {
  if (!manager_.running_under_systemd()) return Restart::cold;
  const auto shards = files_.kept();
  if (!shards) return counter_;  // where it is kept, they will be
  switch (*shards) {
    case LinuxShardFiles::Kept::unknown: return Restart::unknown;
    case LinuxShardFiles::Kept::yes: return Restart::keeps;
    case LinuxShardFiles::Kept::no: return Restart::cold;
  }
  return Restart::unknown;
}

void Adoption::warn(std::string_view event, const Error& error) {
  log_.warn("event={} cause=\"{}\"", event, escape_bytes(error.message()));
}

}  // namespace hotkv
