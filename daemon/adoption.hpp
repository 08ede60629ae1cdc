#pragma once
// What a starting daemon takes over from the one before, and whether the next one will be able to.

#include <cstdint>
#include <expected>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <spdlog/logger.h>

#include <hotkv/error.hpp>

#include "daemon/core/core.hpp"
#include "daemon/failed_adoptions.hpp"
#include "daemon/kept_files.hpp"
#include "daemon/linux_shard_files.hpp"
#include "daemon/platform/service_manager.hpp"

namespace hotkv {

// The event loop's thread. One line in the log for each shard that is taken over, and one for each
// thing that is not.
class Adoption {
 public:
  // All outlive this.
  Adoption(core::Core& core, LinuxShardFiles& files, platform::ServiceManager& manager,
           std::span<const std::string> certified_architectures, spdlog::logger& log)
      : core_(core),
        files_(files),
        manager_(manager),
        certified_architectures_(certified_architectures),
        log_(log) {}

  // Before anybody is served. Whatever is wrong with what was kept, the daemon starts: a shard that
  // cannot be taken over is refused, and after the third adoption in a row that did not come to its
  // end all of them are.
  void run();

  // About once a second: gives up refused files that no client maps any more, shrinks what is still
  // more than today's limits, and finds out whether what was given into the store was kept.
  void tick();

  // Whether a restart would keep every shard there is. Unknown until the manager has had a second.
  enum class Restart { unknown, keeps, cold };
  [[nodiscard]] Restart restart() const;
  [[nodiscard]] std::uint32_t adopted_shards() const { return adopted_shards_; }
  [[nodiscard]] std::uint32_t refused_shards() const { return refused_shards_; }

 private:
  // What no shard is made of. Its memory counts, and it stays in the store, as long as a client
  // maps its pages: the next daemon has to know of it, too.
  struct LeftOver {
    std::string name;
    std::vector<platform::MemoryFile> files;
    std::uint64_t bytes = 0;  // when it was refused; clients can make it more, and gain nothing
  };

  void adopt_or_refuse(std::vector<KeptShard> shards);
  void adopt(KeptShard kept);
  void refuse(KeptShard kept, Error reason);
  // The shard's id, if it is sound.
  [[nodiscard]] std::expected<core::ShardId, Error> take_over(core::ShardMemory memory);
  void refuse(RefusedFiles refused);
  void begin_counting(std::vector<platform::MemoryFile> kept);
  void log_adopted();
  void count_left_over();
  void find_out_what_is_kept();
  void warn(std::string_view event, const Error& error);

  core::Core& core_;
  LinuxShardFiles& files_;
  platform::ServiceManager& manager_;
  std::span<const std::string> certified_architectures_;
  spdlog::logger& log_;
  std::optional<FailedAdoptions> failed_;
  std::vector<LeftOver> left_over_;
  std::uint32_t adopted_shards_ = 0;
  std::uint32_t refused_shards_ = 0;
  int looks_ = 0;  // at what is kept
  Restart counter_ = Restart::unknown;
};

}  // namespace hotkv
