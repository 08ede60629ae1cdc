#pragma once
// A shard for the tests of the client library: three real files, and contexts that somebody without
// a budget keeps in them. It frees no chunk, copies no tail and asks after nobody's liveness.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "shared/geometry.hpp"
#include "shared/layout.hpp"
#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::fake {

using Bytes = std::vector<std::byte>;

template <class... Parts>
Bytes join_bytes(const Parts&... parts) {
  Bytes bytes;
  const auto add = [&](const auto& part) {
    const auto part_bytes = std::as_bytes(std::span(&part, 1));
    bytes.insert(bytes.end(), part_bytes.begin(), part_bytes.end());
  };
  (add(parts), ...);
  return bytes;
}

inline SessionId session_id(std::string_view text) {
  return SessionId::from(text).value();
}

// The recipe of the tests: two layers numbered 3 and 4, K rows of 16 bytes, V rows of 8.
[[nodiscard]] Recipe small_recipe(std::string model_id = "tiny", DType dtype = DType::f16);

struct FakeShardOptions {
  Recipe recipe = small_recipe();
  std::uint32_t chunk_tokens = 16;
  std::uint32_t contexts = 64;
  std::uint32_t clients = 8;
  std::uint64_t arena_bytes = std::uint64_t{16} << 20;
  bool is_deaf_at_first = false;  // a FakeDaemon that listens from its come_back() on
};

// Thread-safe, but for what is named in_lock: that is called with the lock held.
class FakeShard {
 public:
  explicit FakeShard(const FakeShardOptions& options);
  ~FakeShard();
  FakeShard(const FakeShard&) = delete;
  FakeShard& operator=(const FakeShard&) = delete;

  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  [[nodiscard]] const Capacities& capacities() const { return capacities_; }

  // ---- memory, as the daemon sees it ------------------------------------------------------------

  [[nodiscard]] TablesHeader& header() const;
  [[nodiscard]] SlotRecord& slot(SlotIndex slot) const;
  [[nodiscard]] IndexEntry& index(std::uint64_t position) const;
  [[nodiscard]] AtomicWord& chunk_word(ChunkIndex chunk) const;
  [[nodiscard]] AtomicWord& length(SlotIndex slot) const;
  [[nodiscard]] std::byte* chunk(ChunkIndex chunk) const;
  [[nodiscard]] TouchWord& touch_word(SlotIndex slot) const;
  [[nodiscard]] ClientPage& page(PageIndex page) const;
  // Pin words in use in a page.
  [[nodiscard]] std::size_t pins_held(PageIndex page = PageIndex{0}) const;

  // Whether some client has the lease.
  [[nodiscard]] bool is_held(const SessionId& session) const;
  [[nodiscard]] SlotIndex slot_of(const SessionId& session) const;
  [[nodiscard]] ChunkIndex tip_of(const SessionId& session) const;

  // ---- acts of the daemon -----------------------------------------------------------------------

  // Makes a context that nobody holds, with `tokens` published tokens of pattern(token, layer, …).
  void put(const SessionId& session, Epoch epoch, TokenCount tokens);
  // A new generation of the same context, as after a take-over.
  void end_generation(const SessionId& session);
  void retire(const SessionId& session, MissReason reason);
  // What put() fills rows with; no two rows are alike.
  [[nodiscard]] static std::byte pattern(std::uint32_t token, std::uint32_t layer, bool is_key);

  // The same from within a script of the daemon, which holds the lock.
  void end_generation_in_lock(const SessionId& session);
  [[nodiscard]] SlotIndex slot_in_lock(const SessionId& session) const;

 protected:
  struct File {
    UniqueFd fd;  // read-write
    std::byte* bytes = nullptr;
    std::uint64_t size_bytes = 0;
  };

  // Does one operation of a client and says what came of it; `text` is the text of its frame.
  [[nodiscard]] protocol::OperationResult operate_in_lock(PageIndex page, protocol::Type type,
                                                          const std::byte* operation,
                                                          std::string& text);

  const Recipe recipe_;
  Geometry geometry_;
  Capacities capacities_;
  FileLayout layout_;
  File tables_, arena_, pages_;
  mutable std::mutex mutex_;

 private:
  struct HeldContext {
    Epoch epoch;
    SlotIndex slot;
    std::uint32_t holder = 0;  // page + 1
    std::vector<ChunkIndex> chunks;
  };

  static File make_file(const char* name, std::uint64_t size_bytes);
  // All below with the lock held.
  protocol::OperationResult open(PageIndex page, const SessionId& session, Epoch epoch,
                                 std::string& text);
  protocol::OperationResult explain(const HeldContext& context,
                                    const protocol::ExplainOperation& operation) const;
  protocol::OperationResult release(const SessionId& session,
                                    const protocol::ReleaseOperation& operation, std::string& text);
  // APPEND, TRUNCATE and CLOSE, which only the holder may.
  protocol::OperationResult change(HeldContext& context, PageIndex page, protocol::Type type,
                                   const std::byte* operation, std::string& text);
  protocol::OperationResult absence(const SessionId& session) const;
  protocol::OperationResult position_of(const HeldContext& context) const;
  HeldContext& make_context(const SessionId& session, Epoch epoch);
  void grow(HeldContext& context, TokenCount up_to);
  void set_holder(HeldContext& context, std::uint32_t holder);
  void next_generation(HeldContext& context, TokenCount length);
  void retire_in_lock(const SessionId& session, MissReason reason);
  [[nodiscard]] LengthWord length_word(SlotIndex slot) const;

  std::map<SessionId, HeldContext> contexts_;
  std::map<SessionId, std::pair<MissReason, TokenCount>> ended_;
  std::uint32_t slots_used_ = 0;
  std::uint32_t chunks_used_ = 0;
};

}  // namespace hotkv::fake
