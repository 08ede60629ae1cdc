#include "client/tools/admin_client.hpp"

#include <unistd.h>

#include <utility>  // Boost 1.74's Asio uses std::exchange without it

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <cerrno>
#include <cstdlib>

#include "shared/seqpacket.hpp"

namespace hotkv::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Protocol = asio::local::stream_protocol;

// Ten thousand contexts are 3 MB.
constexpr std::uint64_t kReplyBytesMax = std::uint64_t{64} << 20;

Error request_error(const std::string& socket_path, const beast::error_code& failure) {
  Error error{ErrorCode::protocol_error, "ask", socket_path, failure.message(), 0};
  if (failure == beast::error::timeout) {
    error.code = ErrorCode::deadline_exceeded;
    error.cause = "the daemon did not answer";
  } else if (failure == http::error::end_of_stream ||
             failure.category() == asio::error::get_system_category()) {
    const int number =
        failure.category() == asio::error::get_system_category() ? failure.value() : 0;
    error.code = number == EACCES || number == EPERM ? ErrorCode::access_denied
                                                     : ErrorCode::daemon_unavailable;
  }
  return error;
}

// One request over a connection of its own, as a chain of steps; the first failure ends it.
class Request {
 public:
  Request(std::string_view target, std::chrono::milliseconds timeout) : stream_(io_) {
    request_.method(http::verb::get);
    request_.target({target.data(), target.size()});
    request_.version(11);
    request_.set(http::field::host, "localhost");
    request_.keep_alive(false);
    parser_.body_limit(kReplyBytesMax);
    stream_.expires_after(timeout);
  }

  beast::error_code run(const std::string& socket_path) {
    stream_.async_connect(Protocol::endpoint(socket_path), [this](beast::error_code error) {
      if (!go_on(error)) return;
      http::async_write(stream_, request_, [this](beast::error_code written, std::size_t) {
        if (!go_on(written)) return;
        http::async_read(stream_, buffer_, parser_,
                         [this](beast::error_code read, std::size_t) { go_on(read); });
      });
    });
    io_.run();
    return error_;
  }

  AdminReply reply() { return {parser_.get().result_int(), std::move(parser_.get().body())}; }

 private:
  bool go_on(beast::error_code error) {
    error_ = error;
    if (error) stream_.close();
    return !error;
  }

  asio::io_context io_;
  beast::basic_stream<Protocol> stream_;
  beast::flat_buffer buffer_;
  http::request<http::empty_body> request_;
  http::response_parser<http::string_body> parser_;
  beast::error_code error_;
};

}  // namespace

std::string default_admin_socket() {
  const char* const runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (::geteuid() != 0 && runtime_dir != nullptr && *runtime_dir == '/') {
    std::string path = std::string(runtime_dir) + "/hotkv/admin.sock";
    if (::access(path.c_str(), F_OK) == 0) return path;
  }
  return "/run/hotkv/admin.sock";
}

std::expected<AdminReply, Error> admin_get(const std::string& socket_path, std::string_view target,
                                           std::chrono::milliseconds timeout) {
  if (auto address = socket_address(socket_path); !address) {
    return std::unexpected(std::move(address.error()));
  }
  try {
    Request request(target, timeout);
    if (const auto failure = request.run(socket_path)) {
      return std::unexpected(request_error(socket_path, failure));
    }
    return request.reply();
  } catch (const boost::system::system_error& failure) {
    return std::unexpected(system_error("ask", socket_path, failure.code().value()));
  }
}

std::string percent_encoded(std::string_view bytes) {
  constexpr std::string_view kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  for (const char byte : bytes) {
    if (kPlain.find(byte) != std::string_view::npos) {
      encoded += byte;
      continue;
    }
    const auto value = static_cast<unsigned char>(byte);
    encoded += '%';
    encoded += kDigits[value / 16];
    encoded += kDigits[value % 16];
  }
  return encoded;
}

}  // namespace hotkv::tools
