#include "tests/support/fake_daemon.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "shared/seqpacket.hpp"

namespace hotkv::fake {
namespace {

using protocol::Type;

// Far beyond what a loaded machine needs; reached only by a test that fails.
constexpr auto kLong = std::chrono::seconds(60);

void require(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(std::string("fake daemon: ") + what);
}

std::size_t operation_bytes(Type type) {
  switch (type) {
    case Type::hello: return sizeof(protocol::HelloRequest);
    case Type::attach: return sizeof(protocol::AttachRequest);
    case Type::open: return sizeof(protocol::OpenOperation);
    case Type::append: return sizeof(protocol::AppendOperation);
    case Type::truncate: return sizeof(protocol::TruncateOperation);
    case Type::close: return sizeof(protocol::CloseOperation);
    case Type::release: return sizeof(protocol::ReleaseOperation);
    case Type::explain: return sizeof(protocol::ExplainOperation);
  }
  return 0;
}

// Waits where the client has not read yet: it always reads. A client that is gone gets nothing.
void send_to(const UniqueFd& socket, const Bytes& frame, std::span<const int> fds = {}) {
  const auto deadline = std::chrono::steady_clock::now() + kLong;
  for (;;) {
    const auto sent = send_frame(socket.get(), frame, fds);
    if (!sent || *sent != FrameOutcome::would_block) return;
    if (!wait_writable(socket.get(), deadline)) {
      ADD_FAILURE() << "a client does not read its replies";
      return;
    }
  }
}

Bytes reply_frame(const protocol::FrameHeader& request, std::uint64_t boot_token,
                  const Bytes& results, const std::string& text) {
  protocol::FrameHeader header = request;
  header.boot_token = boot_token;
  header.status = 0;
  header.text_bytes = static_cast<std::uint32_t>(text.size());
  header.length_bytes = static_cast<std::uint32_t>(sizeof header + results.size() + text.size());
  Bytes frame = join_bytes(header);
  frame.insert(frame.end(), results.begin(), results.end());
  const auto text_bytes = std::as_bytes(std::span(text));
  frame.insert(frame.end(), text_bytes.begin(), text_bytes.end());
  return frame;
}

}  // namespace

FakeDaemon::FakeDaemon(const FakeDaemonOptions& options, const FakeDaemon* successor_of)
    : FakeShard(options), owns_folder_(successor_of == nullptr) {
  if (successor_of == nullptr) {
    std::string pattern = (std::getenv("TMPDIR") != nullptr ? std::getenv("TMPDIR") : "/tmp");
    pattern += "/hotkv-fake-XXXXXX";
    require(::mkdtemp(pattern.data()) != nullptr, "mkdtemp");
    folder_ = pattern;
  } else {
    folder_ = successor_of->folder_;
  }
  socket_path_ = folder_ + "/control.sock";
  if (!options.is_deaf_at_first) listen();
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  thread_ = std::thread([this] { serve(); });
}

void FakeDaemon::listen() {
  ::unlink(socket_path_.c_str());
  UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  require(listener.get() >= 0, "socket");
  const sockaddr_un address = socket_address(socket_path_).value();
  require(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "bind");
  require(::listen(listener.get(), 64) == 0, "listen");
  listener_ = std::move(listener);
}

FakeDaemon::~FakeDaemon() {
  stopping_ = true;
  wake();
  thread_.join();
  if (!owns_folder_) return;
  ::unlink(socket_path_.c_str());
  ::rmdir(folder_.c_str());
}

ClientOptions FakeDaemon::client_options(Access access, std::chrono::milliseconds deadline) const {
  ClientOptions options;
  options.socket_path = socket_path_;
  options.access = access;
  options.deadline = deadline;
  return options;
}

Client FakeDaemon::attach(Access access, std::chrono::milliseconds deadline) const {
  auto client = Client::attach(client_options(access, deadline), recipe_);
  // A short deadline is meant for what comes after the attach.
  for (int tries = 0; tries < 50 && !client; ++tries) {
    if (client.error().code != ErrorCode::deadline_exceeded) break;
    client = Client::attach(client_options(access, deadline), recipe_);
  }
  if (!client) ADD_FAILURE() << client.error().message();
  return std::move(client.value());
}

// ---- scripts ------------------------------------------------------------------------------------

void FakeDaemon::script(Type type, Script script) {
  const std::lock_guard lock(mutex_);
  scripts_[type] = std::move(script);
}

void FakeDaemon::distort_attach(std::function<void(AttachAnswer&)> distort) {
  const std::lock_guard lock(mutex_);
  distort_attach_ = std::move(distort);
}

void FakeDaemon::send(const Bytes& frame) {
  const std::lock_guard lock(mutex_);
  for (const auto& peer : peers_) send_to(peer->socket, frame);
}

void FakeDaemon::hang_up() {
  std::unique_lock lock(mutex_);
  hang_up_wanted_ = true;
  wake();
  changed_.wait(lock, [&] { return !hang_up_wanted_; });
}

void FakeDaemon::die() {
  std::unique_lock lock(mutex_);
  die_wanted_ = true;
  hang_up_wanted_ = true;
  wake();
  changed_.wait(lock, [&] { return !hang_up_wanted_; });
}

void FakeDaemon::come_back(std::size_t refused) {
  const std::lock_guard lock(mutex_);
  refuse_next_ = refused;
  listen();
  wake();
}

std::size_t FakeDaemon::accepted() const {
  const std::lock_guard lock(mutex_);
  return accepted_;
}

std::size_t FakeDaemon::refused() const {
  const std::lock_guard lock(mutex_);
  return refused_;
}

std::size_t FakeDaemon::received(Type type) const {
  const std::lock_guard lock(mutex_);
  const auto found = received_.find(type);
  return found == received_.end() ? 0 : found->second;
}

void FakeDaemon::wait_for(Type type, std::size_t count) const {
  std::unique_lock lock(mutex_);
  const bool came = changed_.wait_for(lock, kLong, [&] {
    const auto found = received_.find(type);
    return found != received_.end() && found->second >= count;
  });
  EXPECT_TRUE(came) << "frames of type " << static_cast<int>(type) << " did not come";
}

void FakeDaemon::wait_for_connections(std::size_t count) const {
  std::unique_lock lock(mutex_);
  EXPECT_TRUE(changed_.wait_for(lock, kLong, [&] { return peers_.size() == count; }));
}

// ---- serving ------------------------------------------------------------------------------------

void FakeDaemon::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void FakeDaemon::serve() {
  for (;;) {
    std::vector<pollfd> fds{{wake_.get(), POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      fds.push_back({listener_.get(), POLLIN, 0});
      for (const auto& peer : peers_) {
        fds.push_back({peer->socket.get(), static_cast<short>(POLLIN), 0});
      }
    }
    ::poll(fds.data(), fds.size(), -1);
    if (stopping_) return;
    std::uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &wakes, sizeof wakes);

    const std::lock_guard lock(mutex_);
    if (hang_up_wanted_) {
      peers_.clear();
      if (die_wanted_) listener_.reset();
      die_wanted_ = false;
      hang_up_wanted_ = false;
      changed_.notify_all();
      continue;
    }
    std::erase_if(peers_, [&](const auto& peer) {
      const auto entry = std::ranges::find(fds, peer->socket.get(), &pollfd::fd);
      return entry != fds.end() && entry->revents != 0 && !serve_peer(*peer);
    });
    if (listener_ && (fds[1].revents & POLLIN) != 0) accept();
    changed_.notify_all();
  }
}

void FakeDaemon::accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) return;
  ++accepted_;
  if (refuse_next_ != 0) {
    --refuse_next_;
    ++refused_;
    return;
  }
  peers_.push_back(std::make_unique<Peer>(std::move(socket), PageIndex{0}));
}

bool FakeDaemon::serve_peer(Peer& peer) {
  Bytes buffer(protocol::kFrameBytesMax);
  const auto frame = receive_frame(peer.socket.get(), buffer);
  if (!frame || frame->outcome == FrameOutcome::closed) return false;
  if (frame->outcome == FrameOutcome::would_block) return true;
  Received received;
  require(frame->size_bytes >= sizeof received.header, "a frame without a header came");
  std::memcpy(&received.header, buffer.data(), sizeof received.header);
  received.operations.assign(buffer.begin() + sizeof received.header,
                             buffer.begin() + static_cast<std::ptrdiff_t>(frame->size_bytes));
  const auto type = static_cast<Type>(received.header.type);
  EXPECT_EQ(received.header.length_bytes, frame->size_bytes);
  EXPECT_EQ(received.operations.size(), received.header.count * operation_bytes(type));
  answering_page_ = peer.page;
  answer(peer, received);
  ++received_[type];
  return true;
}

void FakeDaemon::answer(Peer& peer, const Received& received) {
  const auto type = static_cast<Type>(received.header.type);
  const auto script = scripts_.find(type);
  if (script == scripts_.end() || !script->second) {
    if (type == Type::attach) return answer_attach(peer, received);
    send_to(peer.socket, honest_answer(received));
    return;
  }
  for (const Bytes& frame : script->second(received)) {
    send_to(peer.socket, frame);
  }
}

protocol::AttachReply FakeDaemon::attach_reply(PageIndex page) const {
  protocol::AttachReply reply{};
  reply.boot_token = header().boot_token;
  reply.cookie = header().boot_token * 1000 + page.value();  // no two daemons' are alike
  reply.page = page.value();
  reply.tables_bytes = layout_.tables_bytes;
  reply.arena_bytes = layout_.arena_bytes;
  reply.pages_bytes = layout_.pages_bytes;
  return reply;
}

void FakeDaemon::answer_coming_back(Peer& peer, const Received& received) {
  const auto request = received.operation<protocol::AttachRequest>(0);
  const PageIndex page{request.page - 1};
  AttachAnswer attach;
  attach.reply = attach_reply(page);
  if (request.cookie != attach.reply.cookie || page.value() >= pages_used_) {
    attach.status = static_cast<std::uint32_t>(ErrorCode::shard_replaced);
  }
  peer.page = page;
  send_attach(peer, received, attach);
}

void FakeDaemon::answer_attach(Peer& peer, const Received& received) {
  const auto request = received.operation<protocol::AttachRequest>(0);
  if (request.page != 0) return answer_coming_back(peer, received);
  peer.page = PageIndex{pages_used_++};
  const bool writes = request.access == static_cast<std::uint32_t>(Access::write);
  AttachAnswer attach;
  attach.reply = attach_reply(peer.page);
  const auto reopen = [](const File& file, int flags) {
    const std::string path = "/proc/self/fd/" + std::to_string(file.fd.get());
    return UniqueFd(::open(path.c_str(), flags | O_CLOEXEC));
  };
  attach.owned.push_back(reopen(tables_, O_RDONLY));
  attach.owned.push_back(reopen(arena_, writes ? O_RDWR : O_RDONLY));
  attach.owned.push_back(reopen(pages_, O_RDWR));
  for (const UniqueFd& fd : attach.owned) attach.fds.push_back(fd.get());
  send_attach(peer, received, attach);
}

void FakeDaemon::send_attach(Peer& peer, const Received& received, AttachAnswer& attach) {
  if (distort_attach_) distort_attach_(attach);
  Bytes frame = reply_frame(received.header, attach.reply.boot_token, join_bytes(attach.reply), {});
  if (attach.status != 0) {
    protocol::FrameHeader header = received.header;
    header.status = attach.status;
    header.count = 0;
    header.length_bytes = sizeof header;
    frame = join_bytes(header);
    attach.fds.clear();
  }
  send_to(peer.socket, frame, attach.fds);
}

Bytes FakeDaemon::honest_answer(const Received& received) {
  const auto type = static_cast<Type>(received.header.type);
  if (type == Type::hello) {
    return reply_frame(received.header, 0,
                       join_bytes(protocol::HelloReply{protocol::kVersionMax, kLayoutVersion}), {});
  }
  std::string text;
  Bytes results;
  for (std::size_t i = 0; i < received.header.count; ++i) {
    const auto result = operate_in_lock(
        answering_page_, type, received.operations.data() + i * operation_bytes(type), text);
    const Bytes bytes = join_bytes(result);
    results.insert(results.end(), bytes.begin(), bytes.end());
  }
  return reply_frame(received.header, header().boot_token, results, text);
}

}  // namespace hotkv::fake
