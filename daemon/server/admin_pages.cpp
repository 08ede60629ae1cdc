#include "daemon/server/admin_pages.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace hotkv::server {
namespace {

// A page of ten thousand contexts is 3 MB and some 50 ms of the daemon's one thread.
constexpr std::size_t kContextsShown = 1000;
constexpr std::size_t kContextsShownMax = 10000;

Error bad_query(std::string cause) {
  return Error{ErrorCode::invalid_argument, "read", "query", std::move(cause), 0};
}

AdminAnswer error_answer(unsigned status, ErrorCode code, std::string_view target,
                         std::string cause) {
  return {status, error_json({code, "get", std::string(target), std::move(cause), 0})};
}

std::optional<unsigned> hex_digit(char c) {
  if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
  if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
  if (c >= 'A' && c <= 'F') return static_cast<unsigned>(c - 'A' + 10);
  return std::nullopt;
}

std::optional<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '%') {
      decoded += text[at];
      continue;
    }
    if (text.size() - at < 3) return std::nullopt;
    const auto high = hex_digit(text[at + 1]);
    const auto low = hex_digit(text[at + 2]);
    if (!high || !low) return std::nullopt;
    decoded += static_cast<char>(*high * 16 + *low);
    at += 2;
  }
  return decoded;
}

}  // namespace

struct AdminPages::Page {
  std::string_view path;
  Answer (AdminPages::*show)(std::string_view query) const;
};

AdminAnswer AdminPages::answer(std::string_view untrusted_method,
                               std::string_view untrusted_target) {
  static constexpr std::array<Page, 5> kPages{{{"/status", &AdminPages::status},
                                               {"/contexts", &AdminPages::contexts},
                                               {"/why", &AdminPages::why},
                                               {"/health", &AdminPages::health},
                                               {"/verify", &AdminPages::verify}}};
  ++counters_.admin_requests;
  const std::size_t mark = untrusted_target.find('?');
  const std::string_view path = untrusted_target.substr(0, mark);
  const std::string_view query =
      mark == std::string_view::npos ? std::string_view{} : untrusted_target.substr(mark + 1);
  const auto page = std::ranges::find(kPages, path, &Page::path);
  if (page == kPages.end()) {
    return error_answer(404, ErrorCode::invalid_argument, path, "no such page");
  }
  if (untrusted_method != "GET") {
    return error_answer(405, ErrorCode::invalid_argument, path, "only GET is allowed");
  }
  auto answer = (this->*page->show)(query);
  if (!answer) return {400, error_json(answer.error())};
  return *std::move(answer);
}

AdminPages::Answer AdminPages::status(std::string_view) const {
  return AdminAnswer{200, status_json(core_.status(), counters_, facts_())};
}

AdminPages::Answer AdminPages::contexts(std::string_view query) const {
  const auto value = query_value(query, "limit");
  if (!value) return std::unexpected(value.error());
  std::size_t limit = kContextsShown;
  if (!value->empty()) {
    const char* const end = value->data() + value->size();
    const auto parsed = std::from_chars(value->data(), end, limit);
    if (parsed.ec != std::errc{} || parsed.ptr != end || limit > kContextsShownMax) {
      return std::unexpected(
          bad_query("limit: expected 0 to " + std::to_string(kContextsShownMax)));
    }
  }
  return AdminAnswer{200, contexts_json(core_.contexts(), limit)};
}

AdminPages::Answer AdminPages::why(std::string_view query) const {
  const auto value = query_value(query, "session");
  if (!value) return std::unexpected(value.error());
  const auto session = SessionId::from(*value);
  if (!session) return std::unexpected(session.error());
  return AdminAnswer{200, why_json(*session, core_.why(*session))};
}

AdminPages::Answer AdminPages::health(std::string_view) const {
  return AdminAnswer{200, health_json()};
}

AdminPages::Answer AdminPages::verify(std::string_view) const {
  const auto fault = core_.verify();
  return AdminAnswer{fault ? 500U : 200U, verify_json(fault)};
}

std::expected<std::string, Error> query_value(std::string_view untrusted_query,
                                              std::string_view name) {
  if (untrusted_query.empty()) return std::string{};
  const std::size_t equals = untrusted_query.find('=');
  if (untrusted_query.substr(0, equals) != name || equals == std::string_view::npos) {
    return std::unexpected(bad_query("expected " + std::string(name) + "=VALUE and nothing else"));
  }
  const std::string_view text = untrusted_query.substr(equals + 1);
  auto decoded = text.find('&') == std::string_view::npos ? percent_decoded(text) : std::nullopt;
  if (!decoded) {
    return std::unexpected(
        bad_query(std::string(name) + ": expected %XX for every byte that is not plain"));
  }
  return *std::move(decoded);
}

}  // namespace hotkv::server
