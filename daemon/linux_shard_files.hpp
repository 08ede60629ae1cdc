#pragma once
// A shard's files as sealed memory files, its clients' lives as page locks, its memory orders as
// jobs of the provisioner.

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/core/core.hpp"
#include "daemon/kept_files.hpp"
#include "daemon/platform/memory_file.hpp"
#include "daemon/platform/provisioner.hpp"
#include "daemon/platform/service_manager.hpp"
#include "daemon/server/shard_files.hpp"
#include "shared/layout.hpp"
#include "shared/mapping.hpp"

namespace hotkv {

// One thread's, the event loop's. See ShardFiles for the contract of what it overrides.
class LinuxShardFiles final : public server::ShardFiles {
 public:
  // With `huge_pages` arenas are mapped so that the kernel can use huge pages for them. The
  // provisioner and the service manager outlive this.
  LinuxShardFiles(platform::Provisioner& provisioner, platform::ServiceManager& manager,
                  bool huge_pages)
      : provisioner_(provisioner), manager_(manager), huge_pages_(huge_pages) {}

  [[nodiscard]] std::expected<server::PreparedShard, Error> prepare(
      const core::ShardPlan& plan) override;
  void keep(core::ShardId shard) override;
  void drop(core::ShardId shard) override;
  [[nodiscard]] std::expected<server::AttachFiles, Error> open_for(core::ClientId client,
                                                                   Access access) override;
  [[nodiscard]] std::expected<void, Error> run(const core::MemoryOrder& order) override;
  [[nodiscard]] std::expected<std::uint64_t, Error> random_number() override;

  // True also where the kernel cannot be asked: pins end by knowledge, never by doubt.
  [[nodiscard]] bool is_alive(core::ClientId client) override;

  // ---- adoption; before anybody is served -------------------------------------------------------

  // Maps the files of a shard that an earlier daemon made. Until keep_adopted() it is nobody's.
  // Errors: system_error, shard_damaged; then `kept` has its files as before.
  [[nodiscard]] std::expected<core::ShardMemory, Error> map_kept(KeptShard& kept);
  // The files mapped last are those of this shard from now on.
  void keep_adopted(core::ShardId shard, const FileLayout& layout);
  // The files mapped last are nobody's; they are not mapped any more, and are in `kept` again.
  void give_up_kept(KeptShard& kept);
  // Gives memory back to the kernel at once.
  void punch(const std::vector<core::ExtentRange>& extents);

  // Compares the kernel's account of the arenas with the core's. Whoever maps an arena can read its
  // holes, and that fills them: memory that is nobody's. It is given back by a job, one at a time
  // and the shards by turns, so that nobody's order waits behind more than one of them. The answer
  // is in whose arena it is, and how much. About once a second.
  struct Surplus {
    core::ShardId shard;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] std::optional<Surplus> give_back_surplus(const core::Core& core);

  // ---- what the service manager keeps -----------------------------------------------------------

  // Asks after each shard that was given into the store before the last call but one: the names of
  // those that turn out not to be there. About once a second: so long has the manager.
  [[nodiscard]] std::vector<std::string> find_not_kept();
  enum class Kept { unknown, yes, no };
  // Of all shards; nothing where there is none.
  [[nodiscard]] std::optional<Kept> kept() const;

  // The answers to run(), in its order. Call when the provisioner wakes the loop.
  [[nodiscard]] std::vector<platform::ProvisionCompletion> take_completions();

 private:
  struct File {
    std::shared_ptr<platform::MemoryFile> memory;  // shared with jobs under way
    Mapping mapping;
  };
  struct Shard {
    File tables;
    File arena;
    File pages;
    FileLayout layout;
    std::string kept_name;
    int looks = 0;  // of find_not_kept() since it was given into the store
    Kept kept = Kept::unknown;
  };

  [[nodiscard]] std::expected<File, Error> make_file(const char* role, std::uint64_t size_bytes,
                                                     bool huge_pages);
  [[nodiscard]] std::expected<std::vector<platform::FileRange>, Error> file_ranges(
      const std::vector<core::ExtentRange>& extents) const;

  void give_into_store(Shard& shard);

  platform::Provisioner& provisioner_;
  platform::ServiceManager& manager_;
  const bool huge_pages_;
  std::optional<Shard> prepared_;
  std::map<core::ShardId, Shard> shards_;
  bool surplus_job_under_way_ = false;
  core::ShardId last_surplus_{0};
};

}  // namespace hotkv
