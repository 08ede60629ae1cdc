#pragma once
// ATTACH: which shard a peer gets, and what it is given of it.

#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <string>

#include <hotkv/error.hpp>

#include "daemon/core/core.hpp"
#include "daemon/server/frame.hpp"
#include "daemon/server/shard_files.hpp"

namespace hotkv::server {

// Who is at the other end, as the kernel recorded it. The pid is for people only; 0 = unknown.
struct Peer {
  std::uint32_t uid = 0;
  std::uint32_t pid = 0;
};

// The uid that the kernel shows for every user it cannot name: two of them may be two people.
inline constexpr std::uint32_t kOverflowUid = 65534;

class Attacher {
 public:
  // All three outlive this; `certified_architectures` decide which recipes are let in.
  Attacher(core::Core& core, ShardFiles& files,
           std::span<const std::string> certified_architectures)
      : core_(core), files_(files), certified_architectures_(certified_architectures) {}

  using EndConnection = std::function<void(core::ClientId)>;
  struct Attached {
    core::ClientId client;
    std::uint64_t cookie = 0;
    std::uint64_t boot_token = 0;
    AttachFiles files;
  };
  // The shard is that of (peer's uid, model id, layers), made if it is not there: a peer cannot
  // name another uid's. On an error the peer has no page. Errors: access_denied,
  // uncertified_architecture, invalid_argument (the recipe), incompatible_recipe naming the fields,
  // and those of Core::plan_shard, Core::attach and ShardFiles.
  // A peer that names an earlier page comes back to it and is given no files: it has them. If the
  // page is its own and has a connection still, `end_connection` is called for it first.
  // Errors: shard_replaced, where the page is not there (any more) or not the peer's.
  [[nodiscard]] std::expected<Attached, Error> attach(Peer peer, const AttachArguments& arguments,
                                                      const EndConnection& end_connection);

 private:
  [[nodiscard]] std::expected<Attached, Error> come_back(Peer peer, const Recipe& recipe,
                                                         const AttachArguments& arguments,
                                                         const EndConnection& end_connection);
  [[nodiscard]] std::expected<core::ShardId, Error> find_or_make_shard(Peer peer,
                                                                       const Recipe& recipe);

  core::Core& core_;
  ShardFiles& files_;
  std::span<const std::string> certified_architectures_;
};

}  // namespace hotkv::server
