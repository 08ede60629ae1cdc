#include "client/examples/shard/frame_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>  // before Asio: Boost 1.74's headers miss it

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace hotkv::shard {
namespace {

namespace asio = boost::asio;
using Protocol = asio::local::stream_protocol;
using boost::system::error_code;
using Length = std::array<unsigned char, 4>;

Length length_of(const std::string& frame) {
  const auto size = static_cast<std::uint32_t>(frame.size());
  return {static_cast<unsigned char>(size), static_cast<unsigned char>(size >> 8),
          static_cast<unsigned char>(size >> 16), static_cast<unsigned char>(size >> 24)};
}

std::uint32_t size_of(const Length& length) {
  return length[0] | std::uint32_t{length[1]} << 8 | std::uint32_t{length[2]} << 16 |
         std::uint32_t{length[3]} << 24;
}

// Asio has errors of its own beside the system's; only the latter's numbers are an errno.
Error failure(std::string operation, const std::filesystem::path& path, const error_code& code) {
  Error error{ErrorCode::system_error, std::move(operation), path.string(), "", 0};
  if (code == asio::error::eof) {
    error.cause = "the other side hung up";
  } else if (code == asio::error::timed_out) {
    error.code = ErrorCode::deadline_exceeded;
    error.cause = "no answer";
  } else if (code.category() == boost::system::system_category()) {
    error.os_errno = code.value();
  } else {
    error.cause = code.message();
  }
  return error;
}

// Nothing was said since the last frame, so what is to be read can only be the end.
bool has_hung_up(Protocol::socket& socket) {
  char byte;
  const ssize_t size = ::recv(socket.native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK);
}

// sockaddr_un holds 107 bytes and their end.
std::expected<void, Error> check_path(const std::filesystem::path& path) {
  if (!path.empty() && path.native().size() <= 107) return {};
  return std::unexpected(
      Error{ErrorCode::invalid_argument, "use socket", path.string(),
            "a path of " + std::to_string(path.native().size()) + " bytes, not 1 to 107"});
}

// Reads frames of one client and writes the answers, each after the other. Kept alive by the
// operation that it waits for.
class Conversation : public std::enable_shared_from_this<Conversation> {
 public:
  Conversation(Protocol::socket socket,
               const std::function<std::string(const std::string&)>& answer,
               std::shared_ptr<int> count)
      : socket_(std::move(socket)), answer_(answer), count_(std::move(count)) {}

  void read_frame() {
    asio::async_read(socket_, asio::buffer(length_),
                     [self = shared_from_this()](error_code code, std::size_t) {
                       if (code || size_of(self->length_) > kFrameBytesMax) return;  // hangs up
                       self->frame_.resize(size_of(self->length_));
                       self->read_body();
                     });
  }

 private:
  void read_body() {
    asio::async_read(socket_, asio::buffer(frame_),
                     [self = shared_from_this()](error_code code, std::size_t) {
                       if (code || has_hung_up(self->socket_)) return;
                       self->frame_ = self->answer_(self->frame_);
                       self->length_ = length_of(self->frame_);
                       self->write_answer();
                     });
  }
  void write_answer() {
    const std::array<asio::const_buffer, 2> buffers{asio::buffer(length_), asio::buffer(frame_)};
    asio::async_write(socket_, buffers, [self = shared_from_this()](error_code code, std::size_t) {
      if (!code) self->read_frame();
    });
  }

  Protocol::socket socket_;
  const std::function<std::string(const std::string&)>& answer_;
  std::shared_ptr<int> count_;
  Length length_{};
  std::string frame_;
};

class Server {
 public:
  Server(asio::io_context& context, const std::function<std::string(const std::string&)>& answer)
      : acceptor_(context), pause_(context), answer_(answer) {}

  error_code listen(const std::filesystem::path& path) {
    error_code code;
    acceptor_.open(Protocol(), code);
    const mode_t old_mask = ::umask(0177);  // the file is born with its mode
    acceptor_.bind(Protocol::endpoint(path.string()), code);
    ::umask(old_mask);
    if (!code) acceptor_.listen(asio::socket_base::max_listen_connections, code);
    if (!code) accept_next();
    return code;
  }

 private:
  static constexpr long kConversationsMax = 64;
  static constexpr std::chrono::milliseconds kPause{100};

  void accept_next() {
    acceptor_.async_accept([this](error_code code, Protocol::socket socket) {
      // Out of descriptors, it would fail again at once.
      if (code) return accept_after_a_pause();
      // One too many is closed with `socket`.
      if (count_.use_count() <= kConversationsMax) {
        std::make_shared<Conversation>(std::move(socket), answer_, count_)->read_frame();
      }
      accept_next();
    });
  }
  void accept_after_a_pause() {
    pause_.expires_after(kPause);
    pause_.async_wait([this](error_code) { accept_next(); });
  }

  Protocol::acceptor acceptor_;
  asio::steady_timer pause_;
  const std::function<std::string(const std::string&)>& answer_;
  std::shared_ptr<int> count_ = std::make_shared<int>();  // held by every conversation, too
};

// A socket file that nobody listens on is what a killed server leaves. Connecting to a file that is
// no socket is refused just the same, hence the look at what it is.
std::expected<void, Error> remove_stale(asio::io_context& context,
                                        const std::filesystem::path& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) {
    return std::unexpected(Error{ErrorCode::address_in_use, "listen", path.string(),
                                 "there is a file that is no socket"});
  }
  error_code code;
  Protocol::socket probe(context);
  probe.connect(Protocol::endpoint(path.string()), code);
  if (!code) {
    return std::unexpected(
        Error{ErrorCode::address_in_use, "listen", path.string(), "a live shard is there"});
  }
  if (code == asio::error::connection_refused) ::unlink(path.c_str());
  return {};
}

}  // namespace

struct FrameClient::State {
  asio::io_context context;
  Protocol::socket socket{context};

  // Runs one asynchronous operation to its end, or cuts it off. True if it completed.
  template <class Start>
  error_code await(std::chrono::steady_clock::time_point end, Start start) {
    error_code outcome = asio::error::timed_out;
    start([&outcome](error_code code, std::size_t) { outcome = code; });
    context.restart();
    context.run_until(end);
    if (!context.stopped()) {
      error_code ignored;
      socket.close(ignored);
      context.run();  // the cut-off operation's handler, which writes to `outcome`
      outcome = asio::error::timed_out;
    }
    return outcome;
  }
};

FrameClient::FrameClient(std::filesystem::path path)
    : path_(std::move(path)), state_(std::make_unique<State>()) {}
FrameClient::~FrameClient() = default;

std::expected<std::string, Error> FrameClient::exchange(const std::string& frame,
                                                        std::chrono::milliseconds deadline) {
  if (auto usable = check_path(path_); !usable) return std::unexpected(usable.error());
  if (frame.size() > kFrameBytesMax) {
    return std::unexpected(
        Error{ErrorCode::invalid_argument, "send frame", path_.string(),
              std::to_string(frame.size()) + " bytes, at most " + std::to_string(kFrameBytesMax)});
  }
  const auto end = std::chrono::steady_clock::now() + deadline;
  const bool is_old_connection = state_->socket.is_open();
  auto reply = try_exchange(frame, end);
  const bool is_dead = !reply && reply.error().code == ErrorCode::system_error;
  return is_dead && is_old_connection ? try_exchange(frame, end) : std::move(reply);
}

std::expected<void, Error> FrameClient::connect() {
  error_code code;
  // Of a Unix socket this succeeds or fails at once; with a full backlog it fails, not blocking.
  state_->socket.open(Protocol(), code);
  state_->socket.non_blocking(true, code);
  if (::connect(state_->socket.native_handle(), Protocol::endpoint(path_.string()).data(),
                static_cast<socklen_t>(Protocol::endpoint(path_.string()).size())) == 0) {
    return {};
  }
  code = error_code(errno, boost::system::system_category());
  error_code ignored;
  state_->socket.close(ignored);
  return std::unexpected(failure("connect", path_, code));
}

std::expected<void, Error> FrameClient::reach() {
  if (auto usable = check_path(path_); !usable) return usable;
  if (state_->socket.is_open() && has_hung_up(state_->socket)) {
    error_code ignored;
    state_->socket.close(ignored);
  }
  if (state_->socket.is_open()) return {};
  return connect();
}

std::expected<std::string, Error> FrameClient::try_exchange(
    const std::string& frame, std::chrono::steady_clock::time_point end) {
  error_code code;
  const auto failed = [&](std::string operation) {
    error_code ignored;
    state_->socket.close(ignored);
    return std::unexpected(failure(std::move(operation), path_, code));
  };
  if (!state_->socket.is_open()) {
    if (auto connected = connect(); !connected) return std::unexpected(connected.error());
  }
  const Length length = length_of(frame);
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(length), asio::buffer(frame)};
  code = state_->await(
      end, [&](auto done) { asio::async_write(state_->socket, buffers, std::move(done)); });
  if (code) return failed("send frame");
  const auto receive = [&](asio::mutable_buffer into) {
    return state_->await(
        end, [&](auto done) { asio::async_read(state_->socket, into, std::move(done)); });
  };
  Length reply_length{};
  code = receive(asio::buffer(reply_length));
  if (code) return failed("receive frame");
  std::string reply;
  if (size_of(reply_length) > kFrameBytesMax) {
    code = error_code(EMSGSIZE, boost::system::system_category());
    return failed("receive frame");
  }
  reply.resize(size_of(reply_length));
  code = receive(asio::buffer(reply));
  if (code) return failed("receive frame");
  return reply;
}

std::expected<void, Error> serve_frames(
    const std::filesystem::path& path, const std::function<void()>& on_listening,
    const std::function<std::string(const std::string&)>& answer) {
  if (auto usable = check_path(path); !usable) return usable;
  asio::io_context context(1);
  asio::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](error_code, int) { context.stop(); });
  if (auto removed = remove_stale(context, path); !removed) return removed;
  Server server(context, answer);
  if (const error_code code = server.listen(path)) {
    return std::unexpected(failure("listen", path, code));
  }
  on_listening();
  context.run();
  ::unlink(path.c_str());
  return {};
}

}  // namespace hotkv::shard
