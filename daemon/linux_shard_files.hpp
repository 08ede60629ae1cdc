#pragma once
// A shard's files as sealed memory files, its clients' lives as page locks, its memory orders as
// jobs of the provisioner.

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/core/core.hpp"
#include "daemon/platform/memory_file.hpp"
#include "daemon/platform/provisioner.hpp"
#include "daemon/server/shard_files.hpp"
#include "shared/layout.hpp"
#include "shared/mapping.hpp"

namespace hotkv {

// One thread's, the event loop's. See ShardFiles for the contract of what it overrides.
class LinuxShardFiles final : public server::ShardFiles {
 public:
  // With `huge_pages` arenas are mapped so that the kernel can use huge pages for them. The
  // provisioner outlives this.
  LinuxShardFiles(platform::Provisioner& provisioner, bool huge_pages)
      : provisioner_(provisioner), huge_pages_(huge_pages) {}

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

  // The answers to run(), in its order. Call when the provisioner wakes the loop.
  [[nodiscard]] std::vector<platform::ProvisionCompletion> take_completions();

 private:
  struct File {
    std::shared_ptr<const platform::MemoryFile> memory;  // shared with jobs under way
    Mapping mapping;
  };
  struct Shard {
    File tables;
    File arena;
    File pages;
    FileLayout layout;
  };

  [[nodiscard]] std::expected<File, Error> make_file(const char* role, std::uint64_t size_bytes,
                                                     bool huge_pages);
  [[nodiscard]] std::expected<std::vector<platform::FileRange>, Error> file_ranges(
      const std::vector<core::ExtentRange>& extents) const;

  platform::Provisioner& provisioner_;
  const bool huge_pages_;
  std::optional<Shard> prepared_;
  std::map<core::ShardId, Shard> shards_;
};

}  // namespace hotkv
