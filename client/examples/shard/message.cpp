#include "client/examples/shard/message.hpp"

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace hotkv::shard {
namespace {

using adapter::Advance;
using adapter::AdvanceRequest;
using adapter::SamplingContract;
using adapter::ShardInput;
using adapter::ShardOutput;
using adapter::ShardResult;
using adapter::TokenId;
using nlohmann::json;

// A reply or request whose content is not what its kind asks for. json's own exceptions are the
// other kind; both end in `parsed`.
struct BadContent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string to_cbor(const json& message) {
  std::string bytes;
  json::to_cbor(message, bytes);
  return bytes;
}

json binary(std::string_view bytes) {
  return json::binary(std::vector<std::uint8_t>(bytes.begin(), bytes.end()));
}

std::string bytes_of(const json& value) {
  const auto& bytes = value.get_binary();
  return {bytes.begin(), bytes.end()};
}

// json's reader calls itself for what is nested, so the nesting is looked at first: a frame of a
// megabyte could use up the stack. Only what `encode` makes is let through to it: maps, arrays,
// numbers, and strings of a definite length.
bool is_shallow(std::string_view bytes) {
  constexpr std::size_t kDepthMax = 8;
  std::vector<std::uint64_t> missing{1};  // items that each open map or array still lacks
  while (!missing.empty()) {
    if (missing.back() == 0) {
      missing.pop_back();
      continue;
    }
    --missing.back();
    if (bytes.empty()) return false;
    const auto head = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    const unsigned kind = head >> 5;
    const unsigned form = head & 31;
    const std::size_t argument_bytes = form < 24 ? 0 : std::size_t{1} << (form - 24);
    if (form > 27 || kind == 6 || bytes.size() < argument_bytes) return false;
    std::uint64_t argument = form;
    for (std::size_t i = 0; i < argument_bytes; ++i) {
      argument = (i == 0 ? 0 : argument << 8) | static_cast<unsigned char>(bytes[i]);
    }
    bytes.remove_prefix(argument_bytes);
    if (kind < 2 || kind == 7) continue;        // a number, true, false, null
    if (argument > bytes.size()) return false;  // an item takes at least a byte
    if (kind < 4) {
      bytes.remove_prefix(argument);
    } else {
      missing.push_back(kind == 4 ? argument : 2 * argument);
      if (missing.size() > kDepthMax) return false;
    }
  }
  return true;
}

json from_cbor(std::string_view bytes) {
  if (!is_shallow(bytes)) throw BadContent("it is cut off, or not built as messages are");
  return json::from_cbor(bytes.begin(), bytes.end());
}

// A number of T's range, and nothing that json would make one of.
template <class T>
T number_of(const json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<T>::max()) {
    throw BadContent("not a number that fits: " + value.dump());
  }
  return static_cast<T>(value.get<std::uint64_t>());
}

template <class T>
T required(std::expected<T, Error> value) {
  if (!value) throw BadContent(value.error().message());
  return std::move(*value);
}

TokenCount count_of(const json& value) {
  return TokenCount{number_of<std::uint32_t>(value)};
}

std::vector<TokenId> tokens_of(const json& value) {
  std::vector<TokenId> tokens;
  for (const json& token : value) tokens.push_back(number_of<TokenId>(token));
  return tokens;
}

json json_of(std::span<const float> rows) {
  std::vector<std::uint8_t> bytes(rows.size_bytes());
  if (!bytes.empty()) std::memcpy(bytes.data(), rows.data(), bytes.size());
  return json::binary(std::move(bytes));
}

std::vector<float> rows_of(const json& value) {
  const auto& bytes = value.get_binary();
  if (bytes.size() % sizeof(float) != 0) throw BadContent("rows that are no whole f32");
  std::vector<float> rows(bytes.size() / sizeof(float));
  if (!rows.empty()) std::memcpy(rows.data(), bytes.data(), bytes.size());
  return rows;
}

json json_of(const ContextKey& key) {
  return {{"session", binary(key.session.bytes())}, {"epoch", key.epoch.value()}};
}

ContextKey key_of(const json& value) {
  return {required(SessionId::from(bytes_of(value.at("session")))),
          Epoch{number_of<std::uint64_t>(value.at("epoch"))}};
}

json json_of(const CacheMiss& miss) {
  const auto bytes = miss.to_bytes();
  return binary({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

CacheMiss miss_of(const json& value) {
  const auto& bytes = value.get_binary();
  return required(CacheMiss::from_bytes(std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

json json_of(const Refusal& refusal) {
  if (refusal.is_miss()) return {{"miss", json_of(refusal.miss())}};
  const Error& error = refusal.error();
  return {{"error",
           {{"code", to_string(error.code)},
            {"operation", binary(error.operation)},
            {"object", binary(error.object)},
            {"cause", binary(error.cause)},
            {"errno", error.os_errno}}}};
}

bool is_refusal(const json& value) {
  return value.contains("miss") || value.contains("error");
}

Refusal refusal_of(const json& value) {
  if (value.contains("miss")) return miss_of(value.at("miss"));
  const json& error = value.at("error");
  const auto code = error_code_from_name(error.at("code").get<std::string>());
  if (!code) throw BadContent("an error code without a name");
  return Error{*code, bytes_of(error.at("operation")), bytes_of(error.at("object")),
               bytes_of(error.at("cause")), error.at("errno").get<int>()};
}

json json_of(const AdvanceRequest& request) {
  json value = json_of(request.key);
  value["tokens"] = request.tokens;
  value["expected"] = request.expected.value();
  value["sole"] = request.is_sole;
  value["sampling"] = request.sampling.name();
  return value;
}

AdvanceRequest advance_request_of(const json& value) {
  return {key_of(value), tokens_of(value.at("tokens")), count_of(value.at("expected")),
          value.at("sole").get<bool>(),
          required(SamplingContract::from_name(value.at("sampling").get<std::string>()))};
}

json json_of(const ShardInput& input) {
  json value = json_of(input.key);
  value["position"] = input.position.value();
  value["residual"] = json_of(std::span<const float>(input.residual));
  if (input.sampling) value["sampling"] = input.sampling->name();
  return value;
}

ShardInput shard_input_of(const json& value) {
  ShardInput input{key_of(value), count_of(value.at("position")), {}, {}, {}};
  input.residual = rows_of(value.at("residual"));
  if (value.contains("sampling")) {
    input.sampling = required(SamplingContract::from_name(value.at("sampling").get<std::string>()));
  }
  return input;
}

json json_of(const Advance& advance) {
  json value = advance.refusal ? json_of(*advance.refusal) : json{{"token", *advance.token}};
  value["cached"] = advance.cached.value();
  value["reused"] = advance.reused.value();
  value["recomputed"] = advance.recomputed.value();
  if (advance.why) value["why"] = json_of(*advance.why);
  return value;
}

Advance advance_of(const json& value) {
  Advance advance;
  if (is_refusal(value)) {
    advance.refusal = refusal_of(value);
  } else {
    advance.token = number_of<TokenId>(value.at("token"));
  }
  advance.cached = count_of(value.at("cached"));
  advance.reused = count_of(value.at("reused"));
  advance.recomputed = count_of(value.at("recomputed"));
  if (value.contains("why")) advance.why = miss_of(value.at("why"));
  return advance;
}

json json_of(const ShardOutput& output) {
  json value{{"residual", json_of(std::span<const float>(output.residual))}};
  if (output.token) value["token"] = *output.token;
  return value;
}

ShardOutput shard_output_of(const json& value) {
  ShardOutput output{rows_of(value.at("residual")), {}};
  if (value.contains("token")) output.token = number_of<TokenId>(value.at("token"));
  return output;
}

// Runs `read` on the decoded message; what is wrong with it becomes an Error.
template <class Read>
auto parsed(std::string_view bytes, std::string_view what, Read read)
    -> std::expected<decltype(read(std::declval<const json&>())), Error> {
  try {
    return read(from_cbor(bytes));
  } catch (const json::exception& failure) {
    return std::unexpected(
        Error{ErrorCode::protocol_error, "decode", std::string(what), failure.what()});
  } catch (const BadContent& failure) {
    return std::unexpected(
        Error{ErrorCode::protocol_error, "decode", std::string(what), failure.what()});
  }
}

// A reply: what `read` makes of it, or the refusal that it is.
template <class Read>
auto parsed_reply(std::string_view bytes, Read read)
    -> std::expected<decltype(read(std::declval<const json&>())), Refusal> {
  using Value = decltype(read(std::declval<const json&>()));
  auto reply = parsed(bytes, "reply", [&](const json& message) -> std::expected<Value, Refusal> {
    if (is_refusal(message)) return std::unexpected(refusal_of(message));
    return read(message);
  });
  if (!reply) return std::unexpected(Refusal(reply.error()));
  return std::move(*reply);
}

}  // namespace

std::string encode(const Request& request) {
  json message;
  json list = json::array();
  if (const auto* advance = std::get_if<AdvanceMessage>(&request)) {
    for (const auto& sequence : advance->batch) list.push_back(json_of(sequence));
    message = {{"ask", "advance"}, {"model", advance->model_id}, {"batch", std::move(list)}};
  } else if (const auto* forward = std::get_if<ForwardMessage>(&request)) {
    for (const auto& sequence : forward->batch) list.push_back(json_of(sequence));
    message = {{"ask", "forward"},
               {"model", forward->model_id},
               {"first_layer", forward->first_layer},
               {"batch", std::move(list)}};
  } else if (const auto* give_back = std::get_if<GiveBackMessage>(&request)) {
    for (const auto& key : give_back->keys) list.push_back(json_of(key));
    message = {{"ask", "give-back"}, {"keys", std::move(list)}};
  } else {
    message = {{"ask", "who"}};
  }
  return to_cbor(message);
}

std::expected<Request, Error> decode_request(std::string_view bytes) {
  return parsed(bytes, "request", [](const json& message) -> Request {
    const auto ask = message.at("ask").get<std::string>();
    if (ask == "advance") {
      AdvanceMessage advance{message.at("model").get<std::string>(), {}};
      for (const json& value : message.at("batch")) {
        advance.batch.push_back(advance_request_of(value));
      }
      return advance;
    }
    if (ask == "forward") {
      ForwardMessage forward{message.at("model").get<std::string>(),
                             number_of<std::uint32_t>(message.at("first_layer")),
                             {}};
      for (const json& value : message.at("batch")) forward.batch.push_back(shard_input_of(value));
      return forward;
    }
    if (ask == "give-back") {
      GiveBackMessage give_back;
      for (const json& value : message.at("keys")) give_back.keys.push_back(key_of(value));
      return give_back;
    }
    if (ask == "who") return WhoMessage{};
    throw BadContent("nobody knows how to \"" + escape_bytes(ask) + "\"");
  });
}

std::string encode(const Refusal& refusal) {
  return to_cbor(json_of(refusal));
}
std::string encode(const std::vector<Advance>& results) {
  json list = json::array();
  for (const Advance& advance : results) list.push_back(json_of(advance));
  return to_cbor({{"results", std::move(list)}});
}

std::string encode(const std::vector<ShardResult>& results) {
  json list = json::array();
  for (const ShardResult& result : results) {
    list.push_back(result ? json_of(*result) : json_of(result.error()));
  }
  return to_cbor({{"results", std::move(list)}});
}

std::string encode(const std::vector<ShardIdentity>& chain) {
  json list = json::array();
  for (const ShardIdentity& shard : chain) {
    list.push_back(
        {{"pid", shard.pid}, {"first", shard.layers.first}, {"last", shard.layers.last}});
  }
  return to_cbor({{"chain", std::move(list)}});
}

std::string encode_done() {
  return to_cbor({{"done", true}});
}

std::expected<std::vector<Advance>, Refusal> decode_advances(std::string_view bytes) {
  return parsed_reply(bytes, [](const json& message) {
    std::vector<Advance> results;
    for (const json& value : message.at("results")) results.push_back(advance_of(value));
    return results;
  });
}

std::expected<std::vector<ShardResult>, Refusal> decode_outputs(std::string_view bytes) {
  return parsed_reply(bytes, [](const json& message) {
    std::vector<ShardResult> results;
    for (const json& value : message.at("results")) {
      if (is_refusal(value)) {
        results.emplace_back(std::unexpected(refusal_of(value)));
      } else {
        results.emplace_back(shard_output_of(value));
      }
    }
    return results;
  });
}

std::expected<std::vector<ShardIdentity>, Refusal> decode_chain(std::string_view bytes) {
  return parsed_reply(bytes, [](const json& message) {
    std::vector<ShardIdentity> chain;
    for (const json& value : message.at("chain")) {
      chain.push_back(
          {value.at("pid").get<std::uint64_t>(),
           {value.at("first").get<std::uint32_t>(), value.at("last").get<std::uint32_t>()}});
    }
    return chain;
  });
}

std::expected<void, Refusal> decode_done(std::string_view bytes) {
  const auto done =
      parsed_reply(bytes, [](const json& message) { return message.at("done").get<bool>(); });
  if (!done) return std::unexpected(done.error());
  return {};
}

}  // namespace hotkv::shard
