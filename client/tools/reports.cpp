#include "client/tools/reports.hpp"

#include <cstdint>
#include <nlohmann/json.hpp>

#include "client/tools/text_table.hpp"

namespace hotkv::tools {
namespace {

using Json = nlohmann::json;

std::string number(const Json& json, const char* name) {
  return std::to_string(json.at(name).get<std::uint64_t>());
}

std::string bytes(const Json& json, const char* name) {
  return human_bytes(json.at(name).get<std::uint64_t>());
}

std::string duration(const Json& json, const char* name) {
  return human_ms(json.at(name).get<std::uint64_t>());
}

std::string layers(const Json& key) {
  return number(key, "first_layer") + "-" + number(key, "last_layer");
}

std::string lease(const Json& context) {
  const Json& holder = context.at("lease");
  if (holder.is_null()) return "-";
  return holder.at("pid").is_null() ? "pid unknown" : "pid " + number(holder, "pid");
}

std::uint64_t sum(const Json& counts) {
  std::uint64_t total = 0;
  for (const auto& [name, count] : counts.items()) total += count.get<std::uint64_t>();
  return total;
}

// nlohmann throws where the page has another form than this tool expects; it ends here.
template <class Make>
std::expected<Report, Error> report_of(std::string_view json, Make make) {
  try {
    return make(Json::parse(json));
  } catch (const Json::exception& failure) {
    return std::unexpected(
        Error{ErrorCode::protocol_error, "read", "the daemon's answer", failure.what(), 0});
  }
}

Report make_status(const Json& page) {
  const Json& account = page.at("account");
  const Json& server = page.at("server");
  TextTable daemon(
      {"hotkvd " + page.at("version").get<std::string>(), "pid " + number(page, "pid")});
  daemon.add({"up", duration(page, "uptime_ms")});
  daemon.add({"connections", number(server, "connections")});
  daemon.add({"waiting grants", number(page, "waiting_grants")});
  daemon.add({"budget", bytes(page.at("limits"), "max_bytes")});
  daemon.add({"provisioned", bytes(account, "provisioned_bytes")});
  daemon.add({"  used", bytes(account, "used_bytes")});
  daemon.add({"  kept", bytes(account, "kept_bytes")});
  daemon.add({"  free", bytes(account, "free_bytes")});
  daemon.add({"  in transit", bytes(account, "in_transit_bytes")});
  TextTable shards({"SHARD", "OWNER", "MODEL", "LAYERS", "CONTEXTS", "CLIENTS", "KEPT HEADS",
                    "USED", "PROVISIONED", "MISSES", "ENDED"});
  for (const Json& shard : page.at("shards")) {
    const Json& key = shard.at("key");
    shards.add({number(shard, "shard"), "uid " + number(key, "owner_uid"),
                key.at("model_id").get<std::string>(), layers(key), number(shard, "contexts"),
                number(shard, "clients"), number(shard, "kept_heads"),
                bytes(shard.at("account"), "used_bytes"),
                bytes(shard.at("account"), "provisioned_bytes"),
                std::to_string(sum(shard.at("counters").at("misses"))),
                std::to_string(sum(shard.at("counters").at("contexts_ended")))});
  }
  return {daemon.text() + "\n" + shards.text()};
}

Report make_contexts(const Json& page) {
  TextTable table(
      {"SHARD", "SESSION", "EPOCH", "TOKENS", "WRITABLE", "CHUNKS", "IDLE", "LEASE", "PINNED"});
  const Json& contexts = page.at("contexts");
  for (const Json& context : contexts) {
    table.add({number(context, "shard"), context.at("session").get<std::string>(),
               number(context, "epoch"), number(context, "length_tokens"),
               number(context, "writable_tokens"), number(context, "chunks"),
               duration(context, "idle_ms"), lease(context),
               context.at("pinned").get<bool>() ? "yes" : "no"});
  }
  std::string text = table.text();
  const auto count = page.at("count").get<std::uint64_t>();
  if (count > contexts.size()) {
    text += "and " + std::to_string(count - contexts.size()) + " more\n";
  }
  return {text};
}

std::string live_text(const Json& context) {
  return "live: epoch " + number(context, "epoch") + ", " + number(context, "length_tokens") +
         " tokens, idle " + duration(context, "idle_ms") + ", lease " + lease(context);
}

std::string miss_text(const Json& miss) {
  std::string text = miss.at("reason").get<std::string>();
  if (!miss.at("last_epoch").is_null()) text += ", last epoch " + number(miss, "last_epoch");
  if (!miss.at("last_length_tokens").is_null()) {
    text += ", last length " + number(miss, "last_length_tokens") + " tokens";
  }
  if (!miss.at("age_ms").is_null()) text += ", " + duration(miss, "age_ms") + " ago";
  return text;
}

Report make_why(const Json& page) {
  Report report{"session " + page.at("session").get<std::string>() + "\n", false};
  TextTable table({"SHARD", "OWNER", "MODEL", "LAYERS", "FATE"});
  for (const Json& shard : page.at("shards")) {
    const bool is_live = !shard.at("context").is_null();
    if (!is_live && shard.at("miss").is_null()) continue;
    report.found = report.found || is_live;
    const Json& key = shard.at("key");
    table.add({number(shard, "shard"), "uid " + number(key, "owner_uid"),
               key.at("model_id").get<std::string>(), layers(key),
               is_live ? live_text(shard.at("context")) : miss_text(shard.at("miss"))});
  }
  report.text += page.at("shards").empty() ? "unknown-session in every shard\n" : table.text();
  return report;
}

}  // namespace

std::expected<Report, Error> status_report(std::string_view json) {
  return report_of(json, make_status);
}

std::expected<Report, Error> contexts_report(std::string_view json) {
  return report_of(json, make_contexts);
}

std::expected<Report, Error> why_report(std::string_view json) {
  return report_of(json, make_why);
}

std::string error_text(std::string_view json) {
  const Json page = Json::parse(json, nullptr, false);
  if (!page.is_object()) return "an answer that is not JSON";
  return page.value("message", "an answer without a message");
}

}  // namespace hotkv::tools
