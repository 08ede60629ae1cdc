#pragma once
// The admin pages: a table from a path to what it shows. Looking changes nothing.

#include <expected>
#include <functional>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

#include "daemon/core/core.hpp"
#include "daemon/server/admin_json.hpp"
#include "daemon/server/counters.hpp"

namespace hotkv::server {

struct AdminAnswer {
  unsigned status = 200;  // of HTTP
  std::string body;       // JSON, ends with a line feed
};

//   GET /status             limits, account, counters, shards
//   GET /contexts?limit=N   contexts, 1000 of them unless told, 10000 at most
//   GET /why?session=ID     what is known of a session (percent-encoded), in every shard
//   GET /health             answered: the daemon's one thread runs
//   GET /verify             walks every table; 500 if something is broken
class AdminPages {
 public:
  // All outlive this.
  AdminPages(const core::Core& core, ServerCounters& counters, std::function<DaemonFacts()> facts)
      : core_(core), counters_(counters), facts_(std::move(facts)) {}

  // `untrusted_target` is the request's path and query. 400, 404 and 405 are errors as JSON.
  [[nodiscard]] AdminAnswer answer(std::string_view untrusted_method,
                                   std::string_view untrusted_target);

 private:
  struct Page;
  using Answer = std::expected<AdminAnswer, Error>;

  [[nodiscard]] Answer status(std::string_view query) const;
  [[nodiscard]] Answer contexts(std::string_view query) const;
  [[nodiscard]] Answer why(std::string_view query) const;
  [[nodiscard]] Answer health(std::string_view query) const;
  [[nodiscard]] Answer verify(std::string_view query) const;

  const core::Core& core_;
  ServerCounters& counters_;
  const std::function<DaemonFacts()> facts_;
};

// The value of a query that consists of exactly this parameter, percent-decoded; "" if the query is
// empty. Errors: invalid_argument (another parameter, a bad escape).
[[nodiscard]] std::expected<std::string, Error> query_value(std::string_view untrusted_query,
                                                            std::string_view name);

}  // namespace hotkv::server
