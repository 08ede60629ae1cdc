#pragma once
// A daemon for the tests of the client library: real files in memory, honest answers, and a script
// wherever a test wants others. It owns no budget, frees no chunk and asks after nobody's liveness.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>
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

inline SessionId session_id(std::string_view text) { return SessionId::from(text).value(); }

// The recipe of the tests: two layers numbered 3 and 4, K rows of 16 bytes, V rows of 8.
[[nodiscard]] Recipe small_recipe(std::string model_id = "tiny", DType dtype = DType::f16);

struct FakeDaemonOptions {
  Recipe recipe = small_recipe();
  std::uint32_t chunk_tokens = 16;
  std::uint32_t contexts = 64;
  std::uint32_t clients = 8;
  std::uint64_t arena_bytes = std::uint64_t{16} << 20;
};

class FakeDaemon {
 public:
  // Listens on a socket of its own from here to its destructor.
  explicit FakeDaemon(const FakeDaemonOptions& options = {});
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }
  [[nodiscard]] const Recipe& recipe() const { return recipe_; }
  [[nodiscard]] const Geometry& geometry() const { return geometry_; }
  [[nodiscard]] const Capacities& capacities() const { return capacities_; }
  [[nodiscard]] ClientOptions client_options(
      Access access = Access::write,
      std::chrono::milliseconds deadline = std::chrono::seconds(30)) const;
  // Attaches or fails the test.
  [[nodiscard]] Client attach(Access access = Access::write,
                              std::chrono::milliseconds deadline = std::chrono::seconds(30)) const;

  // ---- scripts ----------------------------------------------------------------------------------

  struct Received {
    protocol::FrameHeader header;
    Bytes operations;
    template <class Operation>
    [[nodiscard]] Operation operation(std::size_t index) const {
      Operation value;
      std::memcpy(&value, operations.data() + index * sizeof(Operation), sizeof(Operation));
      return value;
    }
  };
  // The frames to send for one that came; none is silence. Runs on the daemon's thread.
  using Script = std::function<std::vector<Bytes>(const Received&)>;
  // Replaces the honest answers to one type of frame; an empty script brings them back.
  void script(protocol::Type type, Script script);
  // The honest answer, done and in bytes, for a script to distort. Not for ATTACH.
  [[nodiscard]] Bytes honest_answer(const Received& received);

  struct AttachAnswer {
    protocol::AttachReply reply;
    std::vector<int> fds;      // tables, arena, pages
    std::vector<UniqueFd> owned;  // closed after sending: for descriptors a distortion makes
    std::uint32_t status = 0;
  };
  // Changes what ATTACH answers.
  void distort_attach(std::function<void(AttachAnswer&)> distort);
  // From now on frames are left unread in the sockets (or read again).
  void set_reading(bool reading);

  // Sends a frame to every connection.
  void send(const Bytes& frame);
  void hang_up();
  // Hangs up and listens no more, as a daemon that was killed.
  void die();

  // ---- what came --------------------------------------------------------------------------------

  [[nodiscard]] std::size_t received(protocol::Type type) const;
  // Until that many frames of the type have come; fails the test after a long time.
  void wait_for(protocol::Type type, std::size_t count) const;
  void wait_for_connections(std::size_t count) const;

  // ---- memory, as the daemon sees it --------------------------------------------------------------

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

  [[nodiscard]] SlotIndex slot_of(const SessionId& session) const;
  [[nodiscard]] ChunkIndex tip_of(const SessionId& session) const;

  // ---- acts of the daemon -------------------------------------------------------------------------

  // Makes a context that nobody holds, with `tokens` published tokens of pattern(token, layer, …).
  void put(const SessionId& session, Epoch epoch, TokenCount tokens);
  // A new generation of the same context, as after a take-over.
  void end_generation(const SessionId& session);
  // The same two from within a script, which holds the daemon's lock.
  void end_generation_in_script(const SessionId& session);
  [[nodiscard]] SlotIndex slot_in_script(const SessionId& session) const;
  void retire(const SessionId& session, MissReason reason);
  // What put() fills rows with; no two rows are alike.
  [[nodiscard]] static std::byte pattern(std::uint32_t token, std::uint32_t layer, bool is_key);

 private:
  struct File {
    UniqueFd fd;            // read-write
    std::byte* bytes = nullptr;
    std::uint64_t size_bytes = 0;
  };
  struct HeldContext {
    Epoch epoch;
    SlotIndex slot;
    std::uint32_t holder = 0;  // page + 1
    std::vector<ChunkIndex> chunks;
  };
  struct Peer {
    UniqueFd socket;
    PageIndex page;
  };

  static File make_file(const char* name, std::uint64_t size_bytes);
  void serve();
  bool serve_peer(Peer& peer);  // false: it is gone
  void answer(Peer& peer, const Received& received);
  void answer_attach(Peer& peer, const Received& received);
  void wake() const;
  // All below with mutex_ held.
  protocol::OperationResult operate(PageIndex page, protocol::Type type, const std::byte* operation,
                                    std::string& text);
  protocol::OperationResult position_of(const HeldContext& context) const;
  HeldContext& make_context(const SessionId& session, Epoch epoch);
  void grow(HeldContext& context, TokenCount up_to);
  void next_generation(HeldContext& context, TokenCount length);
  void retire_locked(const SessionId& session, MissReason reason);
  [[nodiscard]] LengthWord length_word(SlotIndex slot) const;

  const Recipe recipe_;
  Geometry geometry_;
  Capacities capacities_;
  FileLayout layout_;
  File tables_, arena_, pages_;
  std::string folder_, socket_path_;
  UniqueFd listener_, wake_;
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::map<protocol::Type, std::size_t> received_;
  std::map<protocol::Type, Script> scripts_;
  std::function<void(AttachAnswer&)> distort_attach_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::map<SessionId, HeldContext> contexts_;
  std::map<SessionId, std::pair<MissReason, TokenCount>> ended_;
  std::uint32_t slots_used_ = 0, chunks_used_ = 0, pages_used_ = 0;
  bool hang_up_wanted_ = false, die_wanted_ = false, reading_ = true;
  PageIndex answering_page_;  // of the frame that a script is answering

  std::thread thread_;
};

}  // namespace hotkv::fake
