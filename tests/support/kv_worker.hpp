#pragma once
// A worker as users write one: the client library over a real daemon, writing and checking the
// pattern.

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <hotkv/client.hpp>

#include "client/tools/bench/kv_pattern.hpp"
#include "shared/unique_fd.hpp"
#include "tests/support/daemon_process.hpp"
#include "tests/support/forked_child.hpp"

namespace hotkv::testing {

// 2 KV heads of 8 half-precision elements: 64 bytes a token and layer, K and V together.
[[nodiscard]] Recipe worker_recipe(LayerRange layers = {0, 1}, std::string model = "tiny");

class KvWorker {
 public:
  // Attaches; aborts the test process with the reason if it cannot.
  explicit KvWorker(const std::string& control_path, const Recipe& recipe = worker_recipe(),
                    Access access = Access::write);

  explicit KvWorker(Client client) : client_(std::move(client)) {}

  [[nodiscard]] Client& client() { return client_; }
  // The lease it holds; open() first.
  [[nodiscard]] Context& context(std::string_view session) {
    return contexts_.at(std::string(session));
  }
  [[nodiscard]] bool holds(std::string_view session) const {
    return contexts_.contains(std::string(session));
  }

  [[nodiscard]] std::expected<void, Refusal> open(std::string_view session, std::uint64_t epoch);
  // Grants, writes the pattern of `version`, publishes. The new length.
  [[nodiscard]] std::expected<TokenCount, Refusal> append(std::string_view session,
                                                          std::uint32_t tokens,
                                                          std::uint32_t version = 0);
  // Fills tokens [from, to) of a writer.
  void fill(std::string_view session, std::uint64_t epoch, Writer& writer, std::uint32_t from,
            std::uint32_t to, std::uint32_t version = 0) const;
  void drop(std::string_view session) { contexts_.erase(std::string(session)); }

 private:
  Client client_;
  std::map<std::string, Context, std::less<>> contexts_;
};

// Bytes of a view that are not the pattern's. `versions` gives a version by position, 0 behind its
// end.
[[nodiscard]] std::size_t wrong_bytes(const Recipe& recipe, std::string_view session,
                                      std::uint64_t epoch, const View& view,
                                      const std::vector<std::uint32_t>& versions = {});

// The message of a refusal or "": for what a test prints.
template <class T>
[[nodiscard]] std::string why(const std::expected<T, Refusal>& outcome) {
  return outcome ? std::string() : outcome.error().message();
}

// Two processes taking turns over a socket pair; made before the fork, which both ends survive.
class Turns {
 public:
  Turns();
  // The child's side: says that it has come to a point, and waits to be told to go on.
  void arrive_and_wait() const;
  void arrive() const;
  // The parent's side. False if the child is gone.
  [[nodiscard]] bool wait_for_child();
  void go_on() const;

 private:
  UniqueFd parent_end_;
  mutable UniqueFd child_end_;
};

// What the daemon says of itself over the admin socket.
[[nodiscard]] std::string admin_get(const DaemonProcess& daemon, const std::string& target);
// The same, parsed; null where there is no such page.
[[nodiscard]] nlohmann::json admin_page(const DaemonProcess& daemon, const std::string& target);
// What /status says of the shard of a model; null where there is none.
[[nodiscard]] nlohmann::json shard_status(const DaemonProcess& daemon, const std::string& model);
// "" if every invariant holds, else the first broken one.
[[nodiscard]] std::string broken_invariant(const DaemonProcess& daemon);
// A number in the account of /status: "used_bytes", "provisioned_bytes", …
[[nodiscard]] std::uint64_t account_bytes(const DaemonProcess& daemon, const std::string& name);

// A number of /status by its place: "/account/used_bytes", "/server/frames_refused/protocol-error".
// 0 where there is none: counters that are 0 are left out.
[[nodiscard]] std::uint64_t status_number(const DaemonProcess& daemon, const std::string& place);
// How many operations all shards have refused with a code: "lease-lost".
[[nodiscard]] std::uint64_t refusals(const DaemonProcess& daemon, const std::string& code);
// Frames that it has received from all clients so far.
[[nodiscard]] std::uint64_t frames_received(const DaemonProcess& daemon);

}  // namespace hotkv::testing
