#pragma once
// What is said on the control connections, answered: a table from a frame's type to the one method
// of the core that does it.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "daemon/core/core.hpp"
#include "daemon/server/attacher.hpp"
#include "daemon/server/counters.hpp"
#include "daemon/server/event_log.hpp"
#include "daemon/server/frame.hpp"
#include "daemon/server/shard_files.hpp"

namespace hotkv::server {

// A reply, and what ATTACH's passes with it.
struct OutgoingFrame {
  FrameBytes bytes;
  std::array<UniqueFd, protocol::kAttachDescriptors> descriptors;  // none, or all
};

// One control connection as the dispatcher sees it. Lives where the connection does; ends with
// Dispatcher::disconnected.
struct Conversation {
  Peer peer;
  // Takes a reply. Must not call the dispatcher.
  std::function<void(OutgoingFrame)> send;
  // Ends the connection once the present call is over. Must not call the dispatcher at once.
  std::function<void()> hang_up;

  // The dispatcher's.
  bool greeted = false;                    // HELLO was answered
  std::optional<core::ClientId> client{};  // ATTACH was answered
  Access access = Access::read;
  std::uint64_t boot_token = 0;
  std::uint32_t waiting_frames = 0;  // replies that wait for memory; the connection bounds them
};

// One thread's. Nothing that a frame holds ends in more than an error reply.
class Dispatcher {
 public:
  // All outlive this. `later` asks for a call of go_on() once others had their turns.
  Dispatcher(core::Core& core, ShardFiles& files, Attacher& attacher, ServerCounters& counters,
             EventLog& log, std::function<void()> later)
      : core_(core),
        files_(files),
        attacher_(attacher),
        counters_(counters),
        log_(log),
        later_(std::move(later)) {}

  // Answers one received frame; an APPEND that waits for memory is answered later.
  void handle(Conversation& conversation, std::span<const std::byte> untrusted_frame);
  // Answers a frame that could not even be received.
  void refuse(Conversation& conversation, const FrameRefusal& refusal);
  // The connection is gone. Idempotent.
  void disconnected(Conversation& conversation);

  // An order of memory was carried out.
  void memory_order_done(std::uint64_t order_id, std::expected<void, Error> result, bool punched);
  // The core's housekeeping, once a second.
  void tick();
  // The next piece of what is too much for one turn.
  void go_on();

 private:
  struct Route;
  // A frame some of whose operations wait.
  struct WaitingFrame {
    Conversation* conversation;
    Reply reply;
    std::size_t open_results = 0;
  };
  struct WaitingResult {
    std::shared_ptr<WaitingFrame> frame;
    std::size_t index = 0;
  };

  [[nodiscard]] static const Route& route_of(protocol::Type type);

  void hello(Conversation& conversation, const Request& request);
  void attach(Conversation& conversation, const Request& request);
  void open(Conversation& conversation, const Request& request);
  void append(Conversation& conversation, const Request& request);
  void truncate(Conversation& conversation, const Request& request);
  void close(Conversation& conversation, const Request& request);
  void release(Conversation& conversation, const Request& request);
  void explain(Conversation& conversation, const Request& request);

  // Decodes the request's operations, calls `operate` for each in order, and replies.
  template <class Operation, class Operate>
  void run(Conversation& conversation, const Request& request, Operate operate);
  void refuse(Conversation& conversation, const Request& request, Error error);
  void send(Conversation& conversation, FrameBytes bytes);

  // Passes on what the core wants done and has finished; after everything that changes the core.
  void settle();
  void run_memory_orders();
  void answer(const core::FinishedGrant& grant);

  core::Core& core_;
  ShardFiles& files_;
  Attacher& attacher_;
  ServerCounters& counters_;
  EventLog& log_;
  std::function<void()> later_;
  std::map<std::uint64_t, WaitingResult> waiting_;  // by the core's ticket
  std::map<core::ClientId, Conversation*> attached_;
};

}  // namespace hotkv::server
