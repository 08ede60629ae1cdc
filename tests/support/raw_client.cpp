#include "tests/support/raw_client.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

namespace hotkv::testing {
namespace {

using protocol::OperationResult;
using protocol::Type;

Deadline soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(10);
}

template <class Operation>
void set_fingerprint(Operation& operation, const Fingerprint& fingerprint) {
  std::ranges::copy(fingerprint, operation.fingerprint);
}

OperationResult only(const std::vector<OperationResult>& results) {
  if (results.size() == 1) return results.front();
  OperationResult none{};
  none.outcome = 0xffff'ffff;
  return none;
}

}  // namespace

Bytes make_frame(Type type, std::uint64_t request_id, std::size_t count,
                 std::span<const std::byte> body) {
  protocol::FrameHeader header{};
  header.length_bytes = static_cast<std::uint32_t>(sizeof header + body.size());
  header.type = static_cast<std::uint16_t>(type);
  header.count = static_cast<std::uint16_t>(count);
  header.request_id = request_id;
  Bytes frame(header.length_bytes);
  std::memcpy(frame.data(), &header, sizeof header);
  std::ranges::copy(body, frame.begin() + sizeof header);
  return frame;
}

std::vector<OperationResult> RawReply::results() const {
  std::vector<OperationResult> results(body.size() / sizeof(OperationResult));
  std::memcpy(results.data(), body.data(), results.size() * sizeof(OperationResult));
  return results;
}

RawClient::RawClient(const std::string& socket_path) {
  auto socket = connect_seqpacket(socket_path, soon());
  if (!socket) throw std::runtime_error(socket.error().message());
  socket_ = std::move(*socket);
}

bool RawClient::send(std::span<const std::byte> frame) {
  for (;;) {
    const auto sent = send_frame(socket_.get(), frame);
    if (!sent || *sent == FrameOutcome::closed) return false;
    if (*sent == FrameOutcome::ok) return true;
    if (!wait_writable(socket_.get(), soon())) return false;
  }
}

bool RawClient::send_with_descriptors(std::span<const std::byte> frame, int fd, std::size_t count) {
  std::vector<char> control(CMSG_SPACE(count * sizeof(int)));
  iovec part{.iov_base = const_cast<std::byte*>(frame.data()), .iov_len = frame.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  const std::vector<int> fds(count, fd);
  std::memcpy(CMSG_DATA(header), fds.data(), count * sizeof(int));
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) >= 0;
}

std::optional<RawReply> RawClient::receive() {
  Bytes buffer(protocol::kFrameBytesMax);
  RawReply reply;
  for (;;) {
    const auto received = receive_frame(socket_.get(), buffer, reply.descriptors);
    if (!received || received->outcome == FrameOutcome::closed) return std::nullopt;
    if (received->outcome == FrameOutcome::would_block) {
      if (!wait_readable(socket_.get(), soon())) return std::nullopt;
      continue;
    }
    buffer.resize(received->size_bytes);
    break;
  }
  if (buffer.size() < sizeof reply.header) return std::nullopt;
  std::memcpy(&reply.header, buffer.data(), sizeof reply.header);
  if (reply.header.length_bytes != buffer.size()) return std::nullopt;
  const auto text = buffer.end() - reply.header.text_bytes;
  reply.body.assign(buffer.begin() + sizeof reply.header, text);
  std::transform(text, buffer.end(), std::back_inserter(reply.text),
                 [](std::byte byte) { return static_cast<char>(byte); });
  return reply;
}

RawReply RawClient::ask(std::span<const std::byte> frame) {
  if (!send(frame)) return {};
  auto reply = receive();
  return reply ? *std::move(reply) : RawReply{};
}

RawReply RawClient::hello() {
  return ask(make_frame<protocol::HelloRequest>(Type::hello, ++last_request_id_,
                                                {{protocol::kVersionMin, protocol::kVersionMax}}));
}

void RawClient::stay_alive(const RawReply& attached) {
  if (attached.descriptors.count != protocol::kAttachDescriptors) return;
  page_ = UniqueFd(::fcntl(attached.descriptors.fds[2].get(), F_DUPFD_CLOEXEC, 0));
}

RawReply RawClient::attach(const Recipe& recipe, Access access) {
  fingerprint_ = recipe.fingerprint();
  protocol::AttachRequest request{};
  request.recipe = encode_recipe(recipe);
  request.access = static_cast<std::uint32_t>(access);
  return ask(make_frame<protocol::AttachRequest>(Type::attach, ++last_request_id_, {request}));
}

OperationResult RawClient::open(std::string_view session, std::uint64_t epoch) {
  protocol::OpenOperation operation{};
  operation.context = context_name(session, epoch);
  set_fingerprint(operation, fingerprint_);
  return only(operate<protocol::OpenOperation>(Type::open, {operation}));
}

OperationResult RawClient::append(std::string_view session, std::uint64_t epoch,
                                  std::uint32_t generation, std::uint32_t up_to) {
  return only(operate<protocol::AppendOperation>(
      Type::append, {{context_name(session, epoch), generation, up_to}}));
}

OperationResult RawClient::truncate(std::string_view session, std::uint64_t epoch,
                                    std::uint32_t generation, std::uint32_t from,
                                    std::uint32_t to) {
  return only(operate<protocol::TruncateOperation>(
      Type::truncate, {{context_name(session, epoch), generation, from, to, 0}}));
}

OperationResult RawClient::close(std::string_view session, std::uint64_t epoch,
                                 std::uint32_t generation) {
  return only(operate<protocol::CloseOperation>(Type::close,
                                                {{context_name(session, epoch), generation, 0}}));
}

OperationResult RawClient::release(std::string_view session, std::uint64_t epoch) {
  return only(
      operate<protocol::ReleaseOperation>(Type::release, {{context_name(session, epoch), 0, 0}}));
}

OperationResult RawClient::explain(std::string_view session, std::uint64_t epoch,
                                   std::uint32_t expected) {
  protocol::ExplainOperation operation{};
  operation.context = context_name(session, epoch);
  set_fingerprint(operation, fingerprint_);
  operation.expected_tokens = expected;
  operation.match = static_cast<std::uint32_t>(LengthMatch::exact);
  return only(operate<protocol::ExplainOperation>(Type::explain, {operation}));
}

RawClient attached_client(const std::string& control_path, Access access, const Recipe& recipe) {
  RawClient client(control_path);
  EXPECT_EQ(client.hello().header.status, 0U);
  const RawReply attached = client.attach(recipe, access);
  EXPECT_EQ(attached.header.status, 0U) << attached.text;
  client.stay_alive(attached);
  return client;
}

bool is_done(const protocol::OperationResult& result) {
  return result.outcome == static_cast<std::uint32_t>(protocol::Outcome::done);
}

bool is_miss(const protocol::OperationResult& result, MissReason reason) {
  return result.outcome == static_cast<std::uint32_t>(protocol::Outcome::miss) &&
         result.code == static_cast<std::uint32_t>(reason);
}

bool is_error(const protocol::OperationResult& result, ErrorCode code) {
  return result.outcome == static_cast<std::uint32_t>(protocol::Outcome::error) &&
         result.code == static_cast<std::uint32_t>(code);
}

protocol::ContextName context_name(std::string_view session, std::uint64_t epoch) {
  protocol::ContextName name{};
  name.epoch = epoch;
  name.id_bytes = static_cast<std::uint32_t>(session.size());
  std::memcpy(name.id, session.data(), std::min(session.size(), sizeof name.id));
  return name;
}

Recipe small_recipe(std::string model_id) {
  RecipeFields fields;
  fields.architecture = "llama";
  fields.model_id = std::move(model_id);
  fields.dtype = DType::f16;
  fields.kv_heads = 2;
  fields.key_dim = 32;
  fields.value_dim = 32;
  fields.layers = {0, 1};
  return Recipe::make(fields).value();
}

std::string exchange_text(const std::string& socket_path, std::string_view request) {
  const auto address = socket_address(socket_path);
  if (!address) throw std::runtime_error(address.error().message());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    throw std::runtime_error("cannot connect to " + socket_path);
  }
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  // A daemon that has read enough may hang up before it has taken all.
  (void)::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string reply;
  std::array<char, 65536> part;
  for (;;) {
    const ssize_t size = ::recv(fd.get(), part.data(), part.size(), 0);
    if (size <= 0) return reply;
    reply.append(part.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace hotkv::testing
