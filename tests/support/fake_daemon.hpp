#pragma once
// A daemon for the tests of the client library: a shard, a socket, honest answers, and a script
// wherever a test wants others.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <hotkv/client.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "shared/protocol.hpp"
#include "shared/unique_fd.hpp"
#include "tests/support/fake_shard.hpp"

namespace hotkv::fake {

using FakeDaemonOptions = FakeShardOptions;

class FakeDaemon : public FakeShard {
 public:
  // Listens from here to its destructor: on a socket of its own, or where `successor_of` listened
  // before it died, with other memory than that one's.
  explicit FakeDaemon(const FakeDaemonOptions& options = {},
                      const FakeDaemon* successor_of = nullptr);
  ~FakeDaemon();
  FakeDaemon(const FakeDaemon&) = delete;
  FakeDaemon& operator=(const FakeDaemon&) = delete;

  [[nodiscard]] const std::string& socket_path() const { return socket_path_; }
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
    std::vector<int> fds;         // tables, arena, pages
    std::vector<UniqueFd> owned;  // closed after sending: for descriptors a distortion makes
    std::uint32_t status = 0;
  };
  // Changes what ATTACH answers, to those who come back too.
  void distort_attach(std::function<void(AttachAnswer&)> distort);

  // Sends a frame to every connection.
  void send(const Bytes& frame);
  void hang_up();
  // Hangs up and listens no more, as a daemon that was killed.
  void die();
  // Listens again with the same memory, as the daemon that was started after it. It hangs up on the
  // first `refused` connections before they have said anything.
  void come_back(std::size_t refused = 0);

  // ---- what came --------------------------------------------------------------------------------

  [[nodiscard]] std::size_t received(protocol::Type type) const;
  // Until that many frames of the type have come; fails the test after a long time.
  void wait_for(protocol::Type type, std::size_t count) const;
  void wait_for_connections(std::size_t count) const;
  // Connections that were accepted, and those that were hung up on as come_back() said.
  [[nodiscard]] std::size_t accepted() const;
  [[nodiscard]] std::size_t refused() const;

 private:
  struct Peer {
    UniqueFd socket;
    PageIndex page;
  };

  void serve();
  bool serve_peer(Peer& peer);  // false: it is gone
  void answer(Peer& peer, const Received& received);
  void answer_attach(Peer& peer, const Received& received);
  void send_attach(Peer& peer, const Received& received, AttachAnswer& attach);
  void answer_coming_back(Peer& peer, const Received& received);
  [[nodiscard]] protocol::AttachReply attach_reply(PageIndex page) const;
  void listen();
  void accept();
  void wake() const;

  const bool owns_folder_;
  std::string folder_, socket_path_;
  UniqueFd listener_, wake_;
  std::atomic<bool> stopping_{false};

  // Guarded by the shard's mutex.
  mutable std::condition_variable changed_;
  std::map<protocol::Type, std::size_t> received_;
  std::map<protocol::Type, Script> scripts_;
  std::function<void(AttachAnswer&)> distort_attach_;
  std::vector<std::unique_ptr<Peer>> peers_;
  std::uint32_t pages_used_ = 0;
  std::size_t accepted_ = 0, refused_ = 0, refuse_next_ = 0;
  bool hang_up_wanted_ = false, die_wanted_ = false;
  PageIndex answering_page_;  // of the frame that a script is answering

  std::thread thread_;
};

}  // namespace hotkv::fake
