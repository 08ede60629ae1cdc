#pragma once
// The files that a service manager kept, sorted into shards again.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <hotkv/error.hpp>

#include "daemon/platform/memory_file.hpp"
#include "daemon/platform/service_manager.hpp"

namespace hotkv {

// The three files of one shard, and the name under which the manager has them.
struct KeptShard {
  std::string name;
  platform::MemoryFile tables;
  platform::MemoryFile arena;
  platform::MemoryFile pages;
  bool huge_pages = false;  // the arena's extents are made of them
};

// What nothing can be made of. Clients may still map the files.
struct RefusedFiles {
  std::string name;
  Error reason;
  std::vector<platform::MemoryFile> files;  // empty for what is no memory file of ours
};

struct KeptFiles {
  std::vector<KeptShard> shards;
  std::vector<platform::MemoryFile> failed_adoptions;  // see FailedAdoptions; one, if all is well
  std::vector<RefusedFiles> refused;
};

// Which files belong together is said by the tables' header, which the daemon alone can write:
// inodes and sizes of the other two. What a file is for is said by the name with which it was made.
// The manager's names say nothing but what to call them by. Nothing is mapped here.
[[nodiscard]] KeptFiles sort_kept(std::vector<platform::KeptDescriptor> descriptors);

// Says in the tables that no daemon is to try them again. Nothing where they are not of this
// layout.
void mark_given_up(const platform::MemoryFile& tables);

}  // namespace hotkv
