#include "daemon/server/admin_json.hpp"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>

#include <hotkv/cache_miss.hpp>

namespace hotkv::server {
namespace {

// Keeps the order in which things are written: pages are read by people too.
using Json = nlohmann::ordered_json;

// Should bytes that are not UTF-8 slip in, they are replaced; the default is to throw.
std::string text_of(const Json& json) {
  return json.dump(2, ' ', true, Json::error_handler_t::replace) + "\n";
}

std::string hex(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// A pid of 0 is one that means nothing here, and a zero would look like one that does.
Json pid_json(std::uint32_t pid) {
  return pid == 0 ? Json(nullptr) : Json(pid);
}

template <class Number>
Json optional_json(const std::optional<Number>& number) {
  return number ? Json(number->value()) : Json(nullptr);
}

Json account_json(const core::Account& account) {
  return {{"provisioned_bytes", account.provisioned},
          {"used_bytes", account.used},
          {"kept_bytes", account.kept},
          {"free_bytes", account.free},
          {"in_transit_bytes", account.in_transit}};
}

// The numbers of an array indexed by MissReason, by the reasons' names.
Json by_miss_reason(const std::uint64_t (&counts)[10]) {
  Json json = Json::object();
  for (std::uint32_t number = 1; number < std::size(counts); ++number) {
    if (const auto reason = miss_reason_from_number(number)) {
      json[std::string(to_string(*reason))] = counts[number];
    }
  }
  return json;
}

// Those of an array indexed by ErrorCode that are not 0, by the codes' names.
template <class Counts>
Json by_error_code(const Counts& counts) {
  Json json = Json::object();
  for (std::size_t code = 1; code < kErrorCodes; ++code) {
    if (counts[code] != 0)
      json[std::string(to_string(static_cast<ErrorCode>(code)))] = counts[code];
  }
  return json;
}

Json counters_json(const core::Counters& counters) {
  return {{"opens", counters.opens},
          {"appends", counters.appends},
          {"truncates", counters.truncates},
          {"releases", counters.releases},
          {"tail_copies", counters.tail_copies},
          {"takeovers", counters.takeovers},
          {"refusals", by_error_code(counters.refusals)},
          {"contexts_ended", by_miss_reason(counters.ended)},
          {"misses", by_miss_reason(counters.misses)},
          {"operations_missed", by_miss_reason(counters.operations_missed)},
          {"hits_explained", counters.hits_explained},
          {"tombstones_forgotten_early", counters.forgotten_early},
          {"evictions_in_vain", counters.evictions_in_vain}};
}

Json key_json(const core::ShardKey& key) {
  return {{"owner_uid", key.owner_uid},
          {"model_id", escape_bytes(key.model_id)},
          {"first_layer", key.layers.first},
          {"last_layer", key.layers.last}};
}

Json geometry_json(const Geometry& geometry) {
  return {{"layer_count", geometry.layer_count},
          {"chunk_tokens", geometry.chunk_tokens},
          {"chunk_bytes", geometry.chunk_bytes},
          {"extent_bytes", geometry.extent_bytes},
          {"chunks_per_extent", geometry.chunks_per_extent},
          {"extent_count", geometry.extent_count}};
}

// "name=value" lines as an object.
Json recipe_json(const std::string& canonical_text) {
  Json json = Json::object();
  std::istringstream lines(canonical_text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    json[escape_bytes(line.substr(0, equals))] = escape_bytes(line.substr(equals + 1));
  }
  return json;
}

Json shard_json(const core::ShardInfo& shard) {
  return {{"shard", shard.id.value()},
          {"key", key_json(shard.key)},
          {"recipe", recipe_json(shard.recipe_text)},
          {"geometry", geometry_json(shard.geometry)},
          {"boot_token", hex(shard.boot_token)},
          {"contexts", shard.contexts},
          {"clients", shard.clients},
          {"kept_heads", shard.kept_heads},
          {"tombstones", shard.tombstones},
          {"account", account_json(shard.account)},
          {"counters", counters_json(shard.counters)}};
}

Json limits_json(const core::Limits& limits) {
  return {{"max_bytes", limits.max_bytes},
          {"max_bytes_per_owner",
           limits.max_bytes_per_owner == 0 ? Json(nullptr) : Json(limits.max_bytes_per_owner)},
          {"session_cap", limits.session_cap},
          {"ttl_ms", limits.ttl_ms == 0 ? Json(nullptr) : Json(limits.ttl_ms)},
          {"tombstone_ttl_ms", limits.tombstone_ttl_ms},
          {"tombstones", limits.tombstones},
          {"max_shards", limits.max_shards},
          {"max_shards_per_owner", limits.max_shards_per_owner},
          {"clients_per_shard", limits.clients_per_shard},
          {"waiting_grants_max", limits.waiting_grants_max},
          {"chunk_tokens", limits.chunk_tokens == 0 ? Json(nullptr) : Json(limits.chunk_tokens)},
          {"huge_pages", limits.huge_pages}};
}

Json server_json(const ServerCounters& counters) {
  Json disconnects = Json::object();
  for (std::size_t index = 0; index < kDisconnectReasons; ++index) {
    disconnects[std::string(to_string(static_cast<DisconnectReason>(index)))] =
        counters.disconnects[index];
  }
  return {{"connections", counters.connections},
          {"waiting_frames", counters.waiting_frames},
          {"connections_accepted", counters.connections_accepted},
          {"connections_refused", counters.connections_refused},
          {"accept_errors", counters.accept_errors},
          {"disconnects", std::move(disconnects)},
          {"frames_received", counters.frames_received},
          {"frames_sent", counters.frames_sent},
          {"rests", counters.rests},
          {"frames_refused", by_error_code(counters.frames_refused)},
          {"admin_requests", counters.admin_requests}};
}

Json context_json(const core::ContextInfo& context) {
  Json lease = nullptr;
  if (context.holder) {
    lease = {{"page", context.holder->value()}, {"pid", pid_json(context.holder_pid)}};
  }
  return {{"shard", context.shard.value()},
          {"session", context.session.escaped()},
          {"epoch", context.epoch.value()},
          {"generation", context.generation.value()},
          {"length_tokens", context.length.value()},
          {"writable_tokens", context.writable.value()},
          {"chunks", context.chunks},
          {"idle_ms", context.idle_ms},
          {"lease", std::move(lease)},
          {"pinned", context.pinned}};
}

Json miss_json(const CacheMiss& miss) {
  return {{"reason", to_string(miss.reason)},
          {"last_epoch", optional_json(miss.known_epoch)},
          {"last_length_tokens", optional_json(miss.known_length)},
          {"age_ms", miss.age_ms ? Json(*miss.age_ms) : Json(nullptr)}};
}

}  // namespace

std::string status_json(const core::Status& status, const ServerCounters& counters,
                        const DaemonFacts& facts) {
  Json shards = Json::array();
  for (const core::ShardInfo& shard : status.shards) shards.push_back(shard_json(shard));
  return text_of({{"version", facts.version},
                  {"pid", facts.pid},
                  {"uptime_ms", facts.uptime_ms},
                  {"longest_stall_ms", facts.longest_stall_ms},
                  {"log_lines_lost", facts.log_lines_lost},
                  {"restart", facts.restart},
                  {"adopted_shards", facts.adopted_shards},
                  {"refused_shards", facts.refused_shards},
                  {"limits", limits_json(status.limits)},
                  {"account", account_json(status.account)},
                  {"waiting_grants", status.waiting_grants},
                  {"server", server_json(counters)},
                  {"shards", std::move(shards)}});
}

std::string contexts_json(const std::vector<core::ContextInfo>& contexts, std::size_t limit) {
  Json shown = Json::array();
  for (std::size_t index = 0; index < contexts.size() && index < limit; ++index) {
    shown.push_back(context_json(contexts[index]));
  }
  return text_of({{"count", contexts.size()}, {"contexts", std::move(shown)}});
}

std::string why_json(const SessionId& session, const std::vector<core::Explanation>& explanations) {
  Json shards = Json::array();
  for (const core::Explanation& explanation : explanations) {
    shards.push_back(
        {{"shard", explanation.shard.value()},
         {"key", key_json(explanation.key)},
         {"context", explanation.context ? context_json(*explanation.context) : Json(nullptr)},
         {"miss", explanation.last ? miss_json(*explanation.last) : Json(nullptr)}});
  }
  return text_of({{"session", session.escaped()}, {"shards", std::move(shards)}});
}

std::string verify_json(const std::optional<std::string>& fault) {
  return text_of({{"sound", !fault}, {"fault", fault ? Json(*fault) : Json(nullptr)}});
}

std::string health_json() {
  return text_of({{"health", "ok"}});
}

std::string error_json(const Error& error) {
  return text_of({{"error", to_string(error.code)}, {"message", escape_bytes(error.message())}});
}

}  // namespace hotkv::server
