#include "daemon/adoption.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/platform/page_lock.hpp"

namespace hotkv {
namespace {

// A lock anywhere in the pages is a client that still maps its page. Of files that no shard is made
// of the places of pages are not known.
bool is_mapped_by_a_client(const std::vector<platform::MemoryFile>& files) {
  return std::ranges::any_of(files, [](const platform::MemoryFile& file) {
    if (file.role() != "pages") return false;
    return platform::is_range_locked(file.fd(), {0, file.size_bytes()}).value_or(true);
  });
}

}  // namespace

void Adoption::run() {
  auto kept = manager_.take_kept();
  if (!kept) warn("adoption-failed", kept.error());
  KeptFiles files = sort_kept(kept ? *std::move(kept) : std::vector<platform::KeptDescriptor>{});
  begin_counting(std::move(files.failed_adoptions));
  for (RefusedFiles& refused : files.refused) refuse(std::move(refused));
  if (!files.shards.empty()) {
    const std::uint32_t failures = failed_ ? failed_->count() : 0;
    const bool is_poisoned = failures >= FailedAdoptions::kMax;
    if (failed_ && !is_poisoned) {
      if (auto begun = failed_->begin(); !begun) warn("adoption-failed", begun.error());
    }
    for (KeptShard& shard : files.shards) {
      if (!is_poisoned) {
        adopt(std::move(shard));
        continue;
      }
      Error error{ErrorCode::shard_damaged, "adopt", shard.name,
                  std::to_string(failures) + " adoptions in a row did not come to their end", 0};
      std::vector<platform::MemoryFile> its_files;
      its_files.push_back(std::move(shard.tables));
      its_files.push_back(std::move(shard.arena));
      its_files.push_back(std::move(shard.pages));
      refuse({std::move(shard.name), std::move(error), std::move(its_files)});
    }
    core_.tick();  // whose mapping is gone, whose time is up
    files_.punch(core_.shrink_to_budget());
  }
  count_left_over();
  if (failed_) {
    if (auto ended = failed_->end(); !ended) warn("adoption-failed", ended.error());
  }
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

void Adoption::adopt(KeptShard kept) {
  const std::string name = kept.name;
  auto memory = files_.map_kept(std::move(kept));
  if (!memory) {
    return refuse({name, memory.error(), {}});
  }
  const auto shard = take_over(*memory);
  if (!shard) {
    return refuse({name, shard.error(), files_.give_up_kept()});
  }
  files_.keep_adopted(*shard, core_.layout_of(*shard));
  files_.punch(core_.unaccounted_extents(*shard));
  ++adopted_shards_;
  for (const core::ShardInfo& info : core_.status().shards) {
    if (info.id != *shard) continue;
    log_.info(
        "event=adopted shard={} owner_uid={} model=\"{}\" layers={}-{} contexts={} clients={} "
        "lost={} bytes={}",
        name, info.key.owner_uid, escape_bytes(info.key.model_id), info.key.layers.first,
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

void Adoption::refuse(RefusedFiles refused) {
  ++refused_shards_;
  warn("adoption-refused", refused.reason);
  if (auto gone = manager_.let_go(refused.name); !gone) warn("service-manager", gone.error());
  left_over_.push_back(std::move(refused));
}

void Adoption::count_left_over() {
  std::erase_if(left_over_,
                [](const RefusedFiles& each) { return !is_mapped_by_a_client(each.files); });
  std::uint64_t bytes = 0;
  for (const RefusedFiles& each : left_over_) {
    for (const platform::MemoryFile& file : each.files) {
      bytes += file.allocated_bytes().value_or(0);
    }
  }
  core_.set_left_over_bytes(bytes);
}

void Adoption::tick() {
  count_left_over();
  if (!manager_.running_under_systemd()) return;
  if (counter_kept_ == Kept::not_asked && failed_) {
    counter_kept_ =
        platform::ServiceManager::is_kept(failed_->file()).value_or(false) ? Kept::yes : Kept::no;
    if (counter_kept_ == Kept::no) {
      log_.error(
          "event=memory-not-kept object=descriptors cause=\"the service manager keeps none: a "
          "restart will lose every context; set FileDescriptorStoreMax= to three times max_shards "
          "and one more\"");
    }
  }
  for (const std::string& name : files_.find_not_kept()) {
    log_.error(
        "event=memory-not-kept object={} cause=\"the service manager dropped it: a restart will "
        "lose it; set FileDescriptorStoreMax= to three times max_shards and one more\"",
        name);
  }
}

Adoption::Restart Adoption::restart() const {
  if (!manager_.running_under_systemd()) return Restart::cold;
  if (counter_kept_ == Kept::not_asked) return Restart::unknown;
  return counter_kept_ == Kept::yes && files_.all_kept() ? Restart::keeps : Restart::cold;
}

void Adoption::warn(std::string_view event, const Error& error) {
  log_.warn("event={} cause=\"{}\"", event, escape_bytes(error.message()));
}

}  // namespace hotkv
