#include "daemon/linux_shard_files.hpp"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>

#include "daemon/platform/page_lock.hpp"

namespace hotkv {
namespace {

using platform::ByteRange;
using platform::FileRange;

// The job that gives a dropped arena back; no order of the core ever has this number.
constexpr std::uint64_t kDropJob = std::numeric_limits<std::uint64_t>::max();
// The one that gives back what readers of holes have filled.
constexpr std::uint64_t kSurplusJob = kDropJob - 1;

ByteRange page_range(const FileLayout& layout, PageIndex page) {
  return {layout.client_page(page).value(), sizeof(ClientPage)};
}

// What the service manager knows a shard's files by.
std::string store_name(std::uint64_t boot_token) {
  char name[32];
  std::snprintf(name, sizeof name, "shard-%016llx", static_cast<unsigned long long>(boot_token));
  return name;
}

std::expected<Mapping, Error> map(const platform::MemoryFile& memory, bool huge_pages) {
  return Mapping::map(memory.fd(),
                      {.size_bytes = memory.size_bytes(),
                       .access = MapAccess::read_write,
                       .align_to_huge_page = huge_pages,
                       .advise_huge_pages = huge_pages},
                      memory.role());
}

Error no_such_shard(const char* operation, core::ShardId shard) {
  return Error{ErrorCode::system_error, operation, "shard " + std::to_string(shard.value()),
               "its files were given up", 0};
}

}  // namespace

std::expected<LinuxShardFiles::File, Error> LinuxShardFiles::make_file(const char* role,
                                                                       std::uint64_t size_bytes,
                                                                       bool huge_pages) {
  auto memory = platform::MemoryFile::create(role, size_bytes);
  if (!memory) return std::unexpected(std::move(memory.error()));
  auto mapping = map(*memory, huge_pages);
  if (!mapping) return std::unexpected(std::move(mapping.error()));
  return File{std::make_shared<platform::MemoryFile>(*std::move(memory)), *std::move(mapping)};
}

std::expected<server::PreparedShard, Error> LinuxShardFiles::prepare(const core::ShardPlan& plan) {
  prepared_.reset();
  auto tables = make_file("tables", plan.layout.tables_bytes, false);
  if (!tables) return std::unexpected(std::move(tables.error()));
  auto arena = make_file("arena", plan.layout.arena_bytes, huge_pages_);
  if (!arena) return std::unexpected(std::move(arena.error()));
  auto pages = make_file("pages", plan.layout.pages_bytes, false);
  if (!pages) return std::unexpected(std::move(pages.error()));
  const auto boot_token = random_number();
  if (!boot_token) return std::unexpected(boot_token.error());
  const auto first_key = random_number();
  if (!first_key) return std::unexpected(first_key.error());
  const auto second_key = random_number();
  if (!second_key) return std::unexpected(second_key.error());
  const auto arena_inode = arena->memory->inode();
  if (!arena_inode) return std::unexpected(arena_inode.error());
  const auto pages_inode = pages->memory->inode();
  if (!pages_inode) return std::unexpected(pages_inode.error());
  prepared_.emplace(Shard{*std::move(tables), *std::move(arena), *std::move(pages), plan.layout,
                          store_name(*boot_token)});
  return server::PreparedShard{
      {prepared_->tables.mapping.bytes(), prepared_->arena.mapping.bytes(),
       prepared_->pages.mapping.bytes()},
      {*boot_token, {*first_key, *second_key}, *arena_inode, *pages_inode}};
}

void LinuxShardFiles::keep(core::ShardId shard) {
  if (!prepared_) return;
  const auto kept = shards_.emplace(shard, *std::exchange(prepared_, std::nullopt)).first;
  give_into_store(kept->second);
}

// A failure shows as what it is: the files are not kept, which find_not_kept() tells.
void LinuxShardFiles::give_into_store(Shard& shard) {
  const std::array<const platform::MemoryFile*, 3> files{
      shard.tables.memory.get(), shard.arena.memory.get(), shard.pages.memory.get()};
  (void)manager_.keep(shard.kept_name, files);
}

std::vector<std::string> LinuxShardFiles::find_not_kept() {
  std::vector<std::string> names;
  if (manager_.has_waiting()) return names;  // what waits here looks kept
  for (auto& [id, shard] : shards_) {
    if (shard.kept != Kept::unknown || ++shard.looks < 2) continue;
    bool kept = true;
    for (const File* file : {&shard.tables, &shard.arena, &shard.pages}) {
      kept = kept && platform::ServiceManager::is_kept(*file->memory).value_or(false);
    }
    shard.kept = kept ? Kept::yes : Kept::no;
    if (!kept) names.push_back(shard.kept_name);
  }
  return names;
}

std::optional<LinuxShardFiles::Kept> LinuxShardFiles::kept() const {
  if (shards_.empty()) return std::nullopt;
  Kept worst = Kept::yes;
  for (const auto& [id, shard] : shards_) {
    if (shard.kept == Kept::no) return Kept::no;
    if (shard.kept == Kept::unknown) worst = Kept::unknown;
  }
  return worst;
}

std::expected<core::ShardMemory, Error> LinuxShardFiles::map_kept(KeptShard& kept) {
  prepared_.reset();
  auto tables = map(kept.tables, false);
  if (!tables) return std::unexpected(std::move(tables.error()));
  // As it was made, whatever the configuration says now.
  auto arena = map(kept.arena, kept.huge_pages);
  if (!arena) return std::unexpected(std::move(arena.error()));
  auto pages = map(kept.pages, false);
  if (!pages) return std::unexpected(std::move(pages.error()));
  const auto file = [](platform::MemoryFile& memory, Mapping& mapping) {
    return File{std::make_shared<platform::MemoryFile>(std::move(memory)), std::move(mapping)};
  };
  prepared_.emplace(Shard{file(kept.tables, *tables),
                          file(kept.arena, *arena),
                          file(kept.pages, *pages),
                          {},
                          kept.name});
  return core::ShardMemory{prepared_->tables.mapping.bytes(), prepared_->arena.mapping.bytes(),
                           prepared_->pages.mapping.bytes()};
}

void LinuxShardFiles::keep_adopted(core::ShardId shard, const FileLayout& layout) {
  prepared_->layout = layout;
  shards_.emplace(shard, *std::exchange(prepared_, std::nullopt));
}

void LinuxShardFiles::give_up_kept(KeptShard& kept) {
  const auto shard = std::exchange(prepared_, std::nullopt);
  kept.tables = std::move(*shard->tables.memory);
  kept.arena = std::move(*shard->arena.memory);
  kept.pages = std::move(*shard->pages.memory);
}

void LinuxShardFiles::punch(const std::vector<core::ExtentRange>& extents) {
  const auto ranges = file_ranges(extents);
  if (!ranges) return;
  for (const FileRange& range : *ranges) (void)range.file->punch(range.range);
}

// The last descriptor of an arena gives its memory back here, on the loop's thread. Of a large one,
// a job punches it first, on the helper thread.
void LinuxShardFiles::drop(core::ShardId shard) {
  constexpr std::uint64_t kGivenBackAtOnceBytes = 1 << 20;
  const auto found = shards_.find(shard);
  if (found == shards_.end()) return;
  const auto arena = found->second.arena.memory;
  if (arena->allocated_bytes().value_or(0) > kGivenBackAtOnceBytes) {
    (void)provisioner_.submit({kDropJob, {FileRange{arena, {0, arena->size_bytes()}}}, {}});
  }
  (void)manager_.let_go(found->second.kept_name);
  shards_.erase(found);
}

std::expected<server::AttachFiles, Error> LinuxShardFiles::open_for(core::ClientId client,
                                                                    Access access) {
  const auto found = shards_.find(client.shard);
  if (found == shards_.end()) return std::unexpected(no_such_shard("attach", client.shard));
  const Shard& shard = found->second;
  auto tables = shard.tables.memory->reopen(MapAccess::read_only);
  if (!tables) return std::unexpected(std::move(tables.error()));
  auto arena = shard.arena.memory->reopen(access == Access::write ? MapAccess::read_write
                                                                  : MapAccess::read_only);
  if (!arena) return std::unexpected(std::move(arena.error()));
  auto pages = platform::lock_range(*shard.pages.memory, page_range(shard.layout, client.page));
  if (!pages) return std::unexpected(std::move(pages.error()));
  return server::AttachFiles{{*std::move(tables), *std::move(arena), *std::move(pages)},
                             shard.layout.tables_bytes,
                             shard.layout.arena_bytes,
                             shard.layout.pages_bytes};
}

bool LinuxShardFiles::is_alive(core::ClientId client) {
  const auto found = shards_.find(client.shard);
  if (found == shards_.end()) return true;  // nobody is declared dead for want of knowledge
  const Shard& shard = found->second;
  return platform::is_range_locked(shard.pages.memory->fd(), page_range(shard.layout, client.page))
      .value_or(true);
}

std::expected<std::vector<FileRange>, Error> LinuxShardFiles::file_ranges(
    const std::vector<core::ExtentRange>& extents) const {
  std::vector<FileRange> ranges;
  for (const core::ExtentRange& extent : extents) {
    const auto found = shards_.find(extent.shard);
    if (found == shards_.end()) return std::unexpected(no_such_shard("provision", extent.shard));
    const auto& file = found->second.arena.memory;
    const ByteRange range{extent.arena_offset.value(), extent.size_bytes};
    // One call for neighbours: extents can be as small as a page.
    if (!ranges.empty() && ranges.back().file == file &&
        ranges.back().range.offset_bytes + ranges.back().range.length_bytes == range.offset_bytes) {
      ranges.back().range.length_bytes += range.length_bytes;
    } else {
      ranges.push_back({file, range});
    }
  }
  return ranges;
}

// What is absent now may be ordered while the job waits. Orders are carried out one after the other
// by one thread, so the memory of a later one comes after the punch; nothing that anybody uses is
// in an absent extent, nor in one that arrives or leaves, which are not touched.
std::optional<LinuxShardFiles::Surplus> LinuxShardFiles::give_back_surplus(const core::Core& core) {
  if (surplus_job_under_way_ || shards_.empty()) return std::nullopt;
  auto next = shards_.upper_bound(last_surplus_);
  for (std::size_t looked_at = 0; looked_at < shards_.size(); ++looked_at, ++next) {
    if (next == shards_.end()) next = shards_.begin();
    const auto& [id, shard] = *next;
    // The length lines lie before the chunks, and have their memory from their use.
    const std::uint64_t accounted = core.provisioned_bytes_of(id) + shard.layout.chunks.value();
    const std::uint64_t allocated = shard.arena.memory->allocated_bytes().value_or(0);
    if (allocated <= accounted) continue;
    auto ranges = file_ranges(core.unaccounted_extents(id));
    if (!ranges || !provisioner_.submit({kSurplusJob, *std::move(ranges), {}})) {
      return std::nullopt;
    }
    surplus_job_under_way_ = true;
    last_surplus_ = id;
    return Surplus{id, allocated - accounted};
  }
  return std::nullopt;
}

std::expected<void, Error> LinuxShardFiles::run(const core::MemoryOrder& order) {
  auto punches = file_ranges(order.punch);
  if (!punches) return std::unexpected(std::move(punches.error()));
  auto allocations = file_ranges(order.provision);
  if (!allocations) return std::unexpected(std::move(allocations.error()));
  return provisioner_.submit({order.id, *std::move(punches), *std::move(allocations)});
}

std::vector<platform::ProvisionCompletion> LinuxShardFiles::take_completions() {
  auto completions = provisioner_.take_completions();
  std::erase_if(completions, [](const auto& completion) { return completion.id == kDropJob; });
  const auto surplus_jobs = std::erase_if(
      completions, [](const auto& completion) { return completion.id == kSurplusJob; });
  if (surplus_jobs != 0) surplus_job_under_way_ = false;
  return completions;
}

std::expected<std::uint64_t, Error> LinuxShardFiles::random_number() {
  for (;;) {
    std::uint64_t number = 0;
    const ssize_t got = ::getrandom(&number, sizeof number, 0);
    if (got < 0 && errno != EINTR) return std::unexpected(system_error("getrandom", ""));
    if (got == sizeof number && number != 0) return number;
  }
}

}  // namespace hotkv
