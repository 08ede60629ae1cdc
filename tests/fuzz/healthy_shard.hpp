#pragma once
// What a client finds that attaches to an honest daemon: a shard of a few contexts in real files.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "tests/support/fake_shard.hpp"

namespace hotkv::fuzz {

inline constexpr std::uint32_t kSessions = 4;

inline const SessionId& session(std::uint32_t number) {
  static const std::array<SessionId, kSessions> ids{
      SessionId::from("a").value(), SessionId::from("b").value(), SessionId::from("empty").value(),
      SessionId::from("nobody").value()};
  return ids[number % kSessions];
}

// A healthy shard of a few contexts, whose files every input begins with.
class HealthyShard : public fake::FakeShard {
 public:
  HealthyShard() : FakeShard({fake::small_recipe(), 4, 4, 2, std::uint64_t{64} << 10}) {
    put(session(0), Epoch{1}, TokenCount{14});
    put(session(1), Epoch{1}, TokenCount{3});
    put(session(2), Epoch{1}, TokenCount{0});
    // Granted and not published: tokens 5 to 16 of the first.
    const SlotIndex granted = slot_of(session(0));
    length(granted).store(
        LengthWord{load_head(slot(granted).head).generation, TokenCount{5}}.bits());
    tables_copy_.assign(tables_.bytes, tables_.bytes + tables_.size_bytes);
    lengths_copy_.assign(arena_.bytes, arena_.bytes + lengths_bytes());
    null_.reset(::open("/dev/null", O_RDWR | O_CLOEXEC));
    unsealed_.reset(::memfd_create("unsealed", MFD_CLOEXEC));
    require(::ftruncate(unsealed_.get(), static_cast<off_t>(tables_.size_bytes)) == 0, "ftruncate");
  }

  void restore() {
    std::memcpy(tables_.bytes, tables_copy_.data(), tables_copy_.size());
    std::memcpy(arena_.bytes, lengths_copy_.data(), lengths_copy_.size());
    std::memset(pages_.bytes, 0, pages_.size_bytes);
  }

  [[nodiscard]] protocol::AttachReply honest_attach() const {
    protocol::AttachReply reply{};
    reply.boot_token = header().boot_token;
    reply.cookie = 5;
    reply.page = 1;
    reply.tables_bytes = tables_.size_bytes;
    reply.arena_bytes = arena_.size_bytes;
    reply.pages_bytes = pages_.size_bytes;
    return reply;
  }
  // 0 to 2 are the shard's own files.
  [[nodiscard]] UniqueFd duplicate(std::uint32_t which) const {
    const std::array<int, 5> fds{tables_.fd.get(), arena_.fd.get(), pages_.fd.get(), null_.get(),
                                 unsealed_.get()};
    return UniqueFd(::fcntl(fds[which % fds.size()], F_DUPFD_CLOEXEC, 0));
  }
  [[nodiscard]] std::span<std::byte> tables() const { return {tables_.bytes, tables_.size_bytes}; }
  [[nodiscard]] const FileLayout& layout() const { return layout_; }

 private:
  [[nodiscard]] std::size_t lengths_bytes() const {
    return capacities_.slot_count * sizeof(LengthLine);
  }
  std::vector<std::byte> tables_copy_, lengths_copy_;
  UniqueFd null_, unsealed_;
};

inline HealthyShard& shard() {
  static auto& one = *new HealthyShard;
  return one;
}

}  // namespace hotkv::fuzz
