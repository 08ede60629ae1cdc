#pragma once
// A client without the library: it can say anything, right or wrong.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hotkv/cache_miss.hpp>
#include <hotkv/error.hpp>
#include <hotkv/recipe.hpp>
#include <hotkv/types.hpp>

#include "shared/protocol.hpp"
#include "shared/seqpacket.hpp"
#include "shared/unique_fd.hpp"

namespace hotkv::testing {

using Bytes = std::vector<std::byte>;

// A frame with a right header around `body`, which is `count` operations.
[[nodiscard]] Bytes make_frame(protocol::Type type, std::uint64_t request_id, std::size_t count,
                               std::span<const std::byte> body);
template <class Operation>
[[nodiscard]] Bytes make_frame(protocol::Type type, std::uint64_t request_id,
                               const std::vector<Operation>& operations) {
  return make_frame(type, request_id, operations.size(), std::as_bytes(std::span(operations)));
}

struct RawReply {
  protocol::FrameHeader header{};
  Bytes body;  // behind the header, without the text
  std::string text;
  ReceivedDescriptors descriptors;

  [[nodiscard]] bool is_error(ErrorCode code) const {
    return header.status == static_cast<std::uint32_t>(code);
  }
  template <class Body>
  [[nodiscard]] Body body_as() const {
    Body value{};
    if (body.size() == sizeof value) std::memcpy(&value, body.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::vector<protocol::OperationResult> results() const;
};

class RawClient {
 public:
  // Throws std::runtime_error if nobody listens.
  explicit RawClient(const std::string& socket_path);

  [[nodiscard]] int fd() const { return socket_.get(); }
  void hang_up() { socket_.reset(); }

  // False if the daemon is gone or has hung up. Waits while the daemon's queue is full.
  bool send(std::span<const std::byte> frame);
  // With `count` duplicates of a descriptor, as many as the kernel lets through (253).
  bool send_with_descriptors(std::span<const std::byte> frame, int fd, std::size_t count);
  // Nothing after a hang-up, or after ten seconds.
  [[nodiscard]] std::optional<RawReply> receive();
  // Sends and receives; an empty reply (status 0, type 0) where there is none.
  RawReply ask(std::span<const std::byte> frame);

  RawReply hello();
  RawReply attach(const Recipe& recipe, Access access);
  // Keeps the descriptor that carries the lock of this client's page, as a mapping of it would: to
  // the daemon a client without either is gone, and its connection is ended.
  void stay_alive(const RawReply& attached);

  // One message; result i belongs to operation i. Empty after a frame-level refusal.
  template <class Operation>
  std::vector<protocol::OperationResult> operate(protocol::Type type,
                                                 const std::vector<Operation>& operations) {
    return ask(make_frame(type, ++last_request_id_, operations)).results();
  }
  protocol::OperationResult open(std::string_view session, std::uint64_t epoch);
  protocol::OperationResult append(std::string_view session, std::uint64_t epoch,
                                   std::uint32_t generation, std::uint32_t up_to);
  protocol::OperationResult truncate(std::string_view session, std::uint64_t epoch,
                                     std::uint32_t generation, std::uint32_t from,
                                     std::uint32_t to);
  protocol::OperationResult close(std::string_view session, std::uint64_t epoch,
                                  std::uint32_t generation);
  protocol::OperationResult release(std::string_view session, std::uint64_t epoch);
  protocol::OperationResult explain(std::string_view session, std::uint64_t epoch,
                                    std::uint32_t expected);

  // Of the recipe that was attached with; operations above carry it.
  [[nodiscard]] const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  UniqueFd socket_;
  UniqueFd page_;
  Fingerprint fingerprint_{};
  std::uint64_t last_request_id_ = 0;
};

// llama, f16, 2 layers of 2 heads of 32: 512 bytes a token.
[[nodiscard]] Recipe small_recipe(std::string model_id = "model-a");

// Greets and attaches; its page stays its own as a mapping would keep it.
[[nodiscard]] RawClient attached_client(const std::string& control_path,
                                        Access access = Access::write,
                                        const Recipe& recipe = small_recipe());

// What an operation came to.
[[nodiscard]] bool is_done(const protocol::OperationResult& result);
[[nodiscard]] bool is_miss(const protocol::OperationResult& result, MissReason reason);
[[nodiscard]] bool is_error(const protocol::OperationResult& result, ErrorCode code);

[[nodiscard]] protocol::ContextName context_name(std::string_view session, std::uint64_t epoch);

// Says `request` on a stream socket and reads to the end: HTTP as it is.
[[nodiscard]] std::string exchange_text(const std::string& socket_path, std::string_view request);

}  // namespace hotkv::testing
