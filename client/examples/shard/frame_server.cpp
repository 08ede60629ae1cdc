#include "client/examples/shard/frame_server.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <memory>

#include "client/examples/shard/frame.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

namespace hotkv::shard {
namespace {

namespace asio = boost::asio;
using Protocol = asio::local::stream_protocol;
using boost::system::error_code;

// Reads frames of one client and writes the answers, each after the other. Kept alive by the
// operation that it waits for.
class Conversation : public std::enable_shared_from_this<Conversation> {
 public:
  Conversation(FrameSocket socket, const std::function<std::string(const std::string&)>& answer,
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

  FrameSocket socket_;
  const std::function<std::string(const std::string&)>& answer_;
  std::shared_ptr<int> count_;
  FrameLength length_{};
  std::string frame_;
};

// Accepts clients and lets each converse.
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
    acceptor_.async_accept([this](error_code code, FrameSocket socket) {
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
  const auto in_use = [&](const char* cause) {
    return std::unexpected(Error{ErrorCode::address_in_use, "listen", path.string(), cause});
  };
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return in_use("there is a file that is no socket");
  FrameSocket probe(context);
  const error_code code = connect_at_once(probe, path);
  // A full backlog is a live server's, too.
  if (!code || code == asio::error::try_again) return in_use("a live shard is there");
  if (code == asio::error::connection_refused) ::unlink(path.c_str());
  return {};
}

}  // namespace

std::expected<void, Error> serve_frames(
    const std::filesystem::path& path, const std::function<void()>& on_listening,
    const std::function<std::string(const std::string&)>& answer) {
  if (auto usable = check_socket_path(path); !usable) return usable;
  asio::io_context context(1);
  asio::signal_set signals(context, SIGTERM, SIGINT);
  signals.async_wait([&](error_code, int) { context.stop(); });
  if (auto removed = remove_stale(context, path); !removed) return removed;
  Server server(context, answer);
  if (const error_code code = server.listen(path)) {
    return std::unexpected(frame_error("listen", path, code));
  }
  on_listening();
  context.run();
  ::unlink(path.c_str());
  return {};
}

}  // namespace hotkv::shard
