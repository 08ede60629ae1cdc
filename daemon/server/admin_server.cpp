#include "daemon/server/admin_server.hpp"

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <optional>
#include <set>
#include <string>

#include "daemon/server/accept_loop.hpp"

namespace hotkv::server {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Protocol = asio::local::stream_protocol;

// A request has no body worth reading; a header holds one target with a session id of 128 bytes.
constexpr std::uint32_t kHeaderBytesMax = 8192;
constexpr std::uint64_t kBodyBytesMax = 1024;
// Whole request, and whole reply: a reader this slow is not a person waiting at a terminal.
constexpr std::chrono::seconds kTimeout{5};
// Fewer than the control socket leaves: when there are too many clients, people still get in.
constexpr unsigned kSpareDescriptors = 8;

// One request and its reply.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context& io, UniqueFd socket, AdminPages& pages) : stream_(io), pages_(pages) {
    stream_.socket().assign(Protocol(), socket.get());
    (void)socket.release();
    parser_.header_limit(kHeaderBytesMax);
    parser_.body_limit(kBodyBytesMax);
  }

  // `ended` is called once.
  void start(std::function<void(Exchange&)> ended) {
    ended_ = std::move(ended);
    stream_.expires_after(kTimeout);
    http::async_read(
        stream_, buffer_, parser_,
        [self = shared_from_this()](beast::error_code error, std::size_t) { self->read(error); });
  }

  void drop() { stream_.close(); }

 private:
  void read(beast::error_code error) {
    if (error == beast::error::timeout || error == http::error::end_of_stream) return end();
    if (error.category() == http::make_error_code(http::error::bad_method).category()) {
      return write({400, error_json({ErrorCode::protocol_error, "read", "HTTP request",
                                     error.message(), 0})});
    }
    if (error) return end();
    const auto& request = parser_.get();
    write(pages_.answer({request.method_string().data(), request.method_string().size()},
                        {request.target().data(), request.target().size()}));
  }

  void write(AdminAnswer answer) {
    reply_.result(answer.status);
    reply_.set(http::field::content_type, "application/json");
    if (answer.status == 405) reply_.set(http::field::allow, "GET");
    reply_.keep_alive(false);
    reply_.body() = std::move(answer.body);
    reply_.prepare_payload();
    stream_.expires_after(kTimeout);
    http::async_write(stream_, reply_,
                      [self = shared_from_this()](beast::error_code, std::size_t) { self->end(); });
  }

  void end() {
    beast::error_code ignored;
    stream_.socket().shutdown(Protocol::socket::shutdown_both, ignored);
    stream_.close();
    if (ended_) std::exchange(ended_, nullptr)(*this);
  }

  beast::basic_stream<Protocol> stream_;
  AdminPages& pages_;
  beast::flat_buffer buffer_{kHeaderBytesMax + kBodyBytesMax};
  http::request_parser<http::string_body> parser_;
  http::response<http::string_body> reply_;
  std::function<void(Exchange&)> ended_;
};

}  // namespace

class AdminServer::Impl {
 public:
  Impl(asio::io_context& io, UniqueFd listener, AdminPages& pages, ServerCounters& counters,
       EventLog& log)
      : io_(io),
        pages_(pages),
        log_(log),
        accept_loop_(io, std::move(listener), "admin", kSpareDescriptors, log,
                     counters.accept_errors,
                     [this](UniqueFd socket) { accept(std::move(socket)); }) {}

  void start() { accept_loop_.start(); }

  void stop() {
    accept_loop_.stop();
    for (const auto& exchange : exchanges_) exchange->drop();
  }

 private:
  void accept(UniqueFd socket) {
    if (exchanges_.size() >= kAdminConnectionsMax) {
      return log_.warn("admin-refused", "cause=\"all " + std::to_string(kAdminConnectionsMax) +
                                            " admin connections are in use\"");
    }
    std::shared_ptr<Exchange> exchange;
    try {
      exchange = std::make_shared<Exchange>(io_, std::move(socket), pages_);
    } catch (const std::exception& failure) {
      return log_.warn("admin-refused", "cause=\"" + std::string(failure.what()) + "\"");
    }
    exchanges_.insert(exchange);
    exchange->start([this](Exchange& ended) { exchanges_.erase(ended.shared_from_this()); });
  }

  asio::io_context& io_;
  AdminPages& pages_;
  EventLog& log_;
  std::set<std::shared_ptr<Exchange>> exchanges_;
  AcceptLoop accept_loop_;  // last: it ends before what it uses
};

AdminServer::AdminServer(asio::io_context& io, UniqueFd listener, AdminPages& pages,
                         ServerCounters& counters, EventLog& log)
    : impl_(std::make_unique<Impl>(io, std::move(listener), pages, counters, log)) {}
AdminServer::~AdminServer() {
  stop();
}

void AdminServer::start() {
  impl_->start();
}
void AdminServer::stop() {
  impl_->stop();
}

}  // namespace hotkv::server
