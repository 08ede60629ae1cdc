#pragma once
// One shard as a process: what it answers, and what it says of hotkvd's coming and going.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include <hotkv/client.hpp>

#include "client/adapter/boundary_adapter.hpp"
#include "client/examples/shard/message.hpp"
#include "client/examples/shard/remote_shard.hpp"

namespace hotkv::shard {

class Worker {
 public:
  // `computation` outlives the worker. `next` is where the shard behind it listens; empty for the
  // tail.
  Worker(adapter::ShardComputation& computation, ClientOptions options,
         const std::filesystem::path& next);

  // Attaches now rather than at the first request, so that a wrong recipe shows at the start.
  // Errors: BoundaryAdapter::attach's.
  [[nodiscard]] std::expected<void, Error> attach();
  // From a request's frame to its reply's. Never fails: what goes wrong is in the reply.
  [[nodiscard]] std::string answer(const std::string& frame);
  // "shard 0-2, pid 123"
  [[nodiscard]] std::string name() const;

 private:
  // The attachment, made at the first call. The library comes back to hotkvd by itself; while it is
  // away for longer than `wait`, that is the error.
  [[nodiscard]] std::expected<adapter::BoundaryAdapter*, Error> adapter(
      std::chrono::milliseconds wait = {});
  [[nodiscard]] std::expected<void, Error> check(const std::string& model_id,
                                                 std::uint32_t first_layer) const;
  [[nodiscard]] std::string answer(const AdvanceMessage& message);
  [[nodiscard]] std::string answer(const ForwardMessage& message);
  [[nodiscard]] std::string answer(const GiveBackMessage& message);
  [[nodiscard]] std::string answer(const WhoMessage& message);
  void say(const std::string& what) const;

  adapter::ShardComputation* computation_;
  ClientOptions options_;
  std::optional<RemoteShard> next_;
  std::unique_ptr<adapter::BoundaryAdapter> adapter_;
  std::uint64_t boot_token_ = 0;   // of the memory that was last there
  bool is_daemon_missed_ = false;  // said once, not with every request
};

}  // namespace hotkv::shard
