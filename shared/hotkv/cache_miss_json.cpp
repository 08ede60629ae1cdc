// The JSON form of a miss; the one file of shared/ that knows nlohmann-json.

#include <hotkv/cache_miss.hpp>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace hotkv {
namespace {

using Json = nlohmann::json;

Error refuse(std::string key, std::string cause) {
  return Error{ErrorCode::invalid_argument, "decode cache miss", std::move(key), std::move(cause)};
}

// Reads the members of one object and remembers the first thing wrong; reads nothing after it.
class MemberReader {
 public:
  explicit MemberReader(const Json& object) : object_(object) {}

  [[nodiscard]] std::optional<std::uint64_t> number(const char* key, std::uint64_t most) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() > most) {
      fail(key, "must be a whole number from 0 to " + std::to_string(most));
      return std::nullopt;
    }
    return value->get<std::uint64_t>();
  }

  [[nodiscard]] std::optional<std::string> text(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) {
      fail(key, "must be a text");
      return std::nullopt;
    }
    return value->get<std::string>();
  }

  template <class Number>
  [[nodiscard]] std::optional<Number> strong(const char* key) {
    using Rep = typename Number::rep;
    const auto value = number(key, std::numeric_limits<Rep>::max());
    if (!value) return std::nullopt;
    return Number{static_cast<Rep>(*value)};
  }

  void fail(std::string key, std::string cause) {
    if (!error_) error_ = refuse(std::move(key), std::move(cause));
  }
  // Fails for a member that nobody has asked for.
  void refuse_the_rest() {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(known_, key) == known_.end()) fail(escape_bytes(key), "unknown key");
    }
  }
  [[nodiscard]] std::optional<Error>& error() { return error_; }

 private:
  const Json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return error_ || found == object_.end() ? nullptr : &*found;
  }

  const Json& object_;
  std::vector<std::string> known_;
  std::optional<Error> error_;
};

// The object in `text`. A key that stands there twice would silently hide its first value, so it is
// refused.
std::expected<Json, Error> parse_object(std::string_view text) {
  std::vector<std::string> keys;
  std::optional<std::string> twice;
  const auto watch_keys = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event != Json::parse_event_t::key || depth != 1) return true;
    auto key = parsed.get<std::string>();
    if (std::ranges::find(keys, key) != keys.end()) twice = key;
    keys.push_back(std::move(key));
    return true;
  };
  Json object = Json::parse(text, watch_keys, /*allow_exceptions=*/false);
  if (!object.is_object()) return std::unexpected(refuse("text", "is no JSON object"));
  if (twice) return std::unexpected(refuse(escape_bytes(*twice), "stands there twice"));
  return object;
}

std::optional<SessionId> read_session(MemberReader& members) {
  const auto escaped = members.text("session");
  if (!escaped) {
    members.fail("session", "is missing");
    return std::nullopt;
  }
  const auto bytes = unescape_bytes(*escaped);
  if (!bytes) {
    members.fail("session", bytes.error().cause);
    return std::nullopt;
  }
  const auto session = SessionId::from(*bytes);
  if (!session) {
    members.fail("session", session.error().cause);
    return std::nullopt;
  }
  return *session;
}

// A text that must be a name known to `from_name`.
template <class FromName>
auto read_name(MemberReader& members, const char* key, FromName from_name)
    -> decltype(from_name(std::string_view{})) {
  const auto name = members.text(key);
  if (!name) return std::nullopt;
  const auto known = from_name(*name);
  if (!known) members.fail(key, "unknown name " + escape_bytes(*name));
  return known;
}

}  // namespace

std::string CacheMiss::to_json() const {
  nlohmann::ordered_json object;
  object["session"] = session.escaped();
  object["epoch"] = epoch.value();
  if (expected_length) object["expected_length"] = expected_length->value();
  object["reason"] = to_string(reason);
  if (known_epoch) object["known_epoch"] = known_epoch->value();
  if (known_length) object["known_length"] = known_length->value();
  if (age_ms) object["age_ms"] = *age_ms;
  if (cause) object["cause"] = to_string(*cause);
  return object.dump();
}

std::expected<CacheMiss, Error> CacheMiss::from_json(std::string_view text) {
  const auto object = parse_object(text);
  if (!object) return std::unexpected(object.error());
  MemberReader members(*object);
  const auto session = read_session(members);
  const auto epoch = members.strong<Epoch>("epoch");
  if (!epoch) members.fail("epoch", "is missing");
  const auto expected_length = members.strong<TokenCount>("expected_length");
  const auto reason = read_name(members, "reason", miss_reason_from_name);
  if (!reason) members.fail("reason", "is missing");
  const auto known_epoch = members.strong<Epoch>("known_epoch");
  const auto known_length = members.strong<TokenCount>("known_length");
  const auto age_ms = members.number("age_ms", std::numeric_limits<std::uint64_t>::max());
  const auto cause = read_name(members, "cause", error_code_from_name);
  members.refuse_the_rest();
  if (members.error()) return std::unexpected(std::move(*members.error()));
  return CacheMiss{*session,    *epoch,       expected_length, *reason,
                   known_epoch, known_length, age_ms,          cause};
}

}  // namespace hotkv
