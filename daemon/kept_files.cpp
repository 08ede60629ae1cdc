#include "daemon/kept_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>

#include "daemon/failed_adoptions.hpp"
#include "shared/layout.hpp"

namespace hotkv {
namespace {

using platform::MemoryFile;

Error refused(std::string name, ErrorCode code, std::string cause) {
  return Error{code, "adopt", std::move(name), std::move(cause), 0};
}

// What the header says of the other two files. Read, not mapped: a file that is too short for it
// must not end the daemon.
struct Belongings {
  std::uint64_t arena_inode, arena_bytes, pages_inode, pages_bytes;
  bool huge_pages;
};
std::expected<Belongings, Error> read_belongings(const std::string& name,
                                                 const MemoryFile& tables) {
  alignas(TablesHeader) std::array<std::byte, sizeof(TablesHeader)> bytes{};
  if (::pread(tables.fd(), bytes.data(), bytes.size(), 0) != std::ssize(bytes)) {
    return std::unexpected(
        refused(name, ErrorCode::shard_damaged, "the tables are shorter than their header"));
  }
  const auto& header = *reinterpret_cast<const TablesHeader*>(bytes.data());
  if (auto checked = check_header(header); !checked) return std::unexpected(checked.error());
  if (header.state.load() == static_cast<std::uint32_t>(ShardState::closed)) {
    return std::unexpected(refused(name, ErrorCode::shard_damaged, "an earlier daemon gave it up"));
  }
  return Belongings{header.arena_inode, header.arena_bytes, header.pages_inode, header.pages_bytes,
                    header.geometry.extent_bytes % kHugePageBytes == 0};
}

struct NamedFile {
  std::string name;
  MemoryFile file;
};

// Takes the file with this inode and size out of `files`.
std::optional<MemoryFile> take(std::vector<NamedFile>& files, std::uint64_t inode,
                               std::uint64_t size_bytes) {
  const auto found = std::ranges::find_if(files, [&](const NamedFile& each) {
    const auto its = each.file.inode();
    return its && *its == inode && each.file.size_bytes() == size_bytes;
  });
  if (found == files.end()) return std::nullopt;
  MemoryFile file = std::move(found->file);
  files.erase(found);
  return file;
}

class Sorter {
 public:
  void take_in(platform::KeptDescriptor descriptor) {
    const std::string role = MemoryFile::role_of(descriptor.fd.get());
    auto file = MemoryFile::adopt(role.empty() ? "kept file" : role, std::move(descriptor.fd));
    if (!file) return refuse(std::move(descriptor.name), std::move(file.error()), {});
    if (role == "tables") {
      tables_.push_back({std::move(descriptor.name), *std::move(file)});
    } else if (role == "arena") {
      arenas_.push_back({std::move(descriptor.name), *std::move(file)});
    } else if (role == "pages") {
      pages_.push_back({std::move(descriptor.name), *std::move(file)});
    } else if (role == FailedAdoptions::kRole) {
      kept_.failed_adoptions.push_back(*std::move(file));
    } else {
      Error error = refused(descriptor.name, ErrorCode::shard_damaged, "not a file of hotkv");
      refuse(std::move(descriptor.name), std::move(error), {});
    }
  }

  KeptFiles finish() && {
    for (NamedFile& tables : tables_) match(std::move(tables));
    // What is left has no tables of this layout; what has one name was one shard.
    std::map<std::string, std::vector<MemoryFile>> left;
    for (auto* files : {&arenas_, &pages_}) {
      for (NamedFile& each : *files) left[each.name].push_back(std::move(each.file));
    }
    for (auto& [name, files] : left) {
      const auto known = std::ranges::find(kept_.refused, name, &RefusedFiles::name);
      if (known == kept_.refused.end()) {
        refuse(name, refused(name, ErrorCode::shard_damaged, "its tables are not there"),
               std::move(files));
      } else {
        for (MemoryFile& file : files) known->files.push_back(std::move(file));
      }
    }
    return std::move(kept_);
  }

 private:
  void match(NamedFile tables) {
    const auto belongings = read_belongings(tables.name, tables.file);
    std::vector<MemoryFile> files;
    if (belongings) {
      auto arena = take(arenas_, belongings->arena_inode, belongings->arena_bytes);
      auto pages = take(pages_, belongings->pages_inode, belongings->pages_bytes);
      if (arena && pages) {
        kept_.shards.push_back({std::move(tables.name), std::move(tables.file), *std::move(arena),
                                *std::move(pages), belongings->huge_pages});
        return;
      }
      if (arena) files.push_back(*std::move(arena));
      if (pages) files.push_back(*std::move(pages));
    }
    Error error = belongings ? refused(tables.name, ErrorCode::shard_damaged,
                                       "the arena or the pages of its header are not there")
                             : belongings.error();
    files.push_back(std::move(tables.file));
    refuse(std::move(tables.name), std::move(error), std::move(files));
  }

  void refuse(std::string name, Error error, std::vector<MemoryFile> files) {
    kept_.refused.push_back({std::move(name), std::move(error), std::move(files)});
  }

  std::vector<NamedFile> tables_, arenas_, pages_;
  KeptFiles kept_;
};

}  // namespace

void mark_given_up(const platform::MemoryFile& tables) {
  if (!read_belongings("", tables)) return;
  const auto closed = static_cast<std::uint32_t>(ShardState::closed);
  [[maybe_unused]] const ssize_t written =
      ::pwrite(tables.fd(), &closed, sizeof closed, offsetof(TablesHeader, state));
}

KeptFiles sort_kept(std::vector<platform::KeptDescriptor> descriptors) {
  Sorter sorter;
  for (platform::KeptDescriptor& descriptor : descriptors) sorter.take_in(std::move(descriptor));
  return std::move(sorter).finish();
}

}  // namespace hotkv
