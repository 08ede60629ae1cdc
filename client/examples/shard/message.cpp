#include "client/examples/shard/message.hpp"

#include <cstring>
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

template <class T>
T required(std::expected<T, Error> value) {
  if (!value) throw BadContent(value.error().message());
  return std::move(*value);
}

TokenCount count_of(const json& value) {
  const auto number = value.get<std::uint64_t>();
  if (number > 0xffff'ffff) throw BadContent("a token count beyond 32 bits");
  return TokenCount{static_cast<std::uint32_t>(number)};
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
          Epoch{value.at("epoch").get<std::uint64_t>()}};
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
  value["sampling"] = request.sampling.name();
  return value;
}

AdvanceRequest advance_request_of(const json& value) {
  return {key_of(value), value.at("tokens").get<std::vector<TokenId>>(),
          count_of(value.at("expected")),
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
  json value{{"token", advance.token},
             {"cached", advance.cached.value()},
             {"reused", advance.reused.value()},
             {"recomputed", advance.recomputed.value()}};
  if (advance.why) value["why"] = json_of(*advance.why);
  return value;
}

Advance advance_of(const json& value) {
  Advance advance{value.at("token").get<TokenId>(),
                  count_of(value.at("cached")),
                  count_of(value.at("reused")),
                  count_of(value.at("recomputed")),
                  {}};
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
  if (value.contains("token")) output.token = value.at("token").get<TokenId>();
  return output;
}

template <class T>
std::string encode_results(const std::vector<std::expected<T, Refusal>>& results) {
  json list = json::array();
  for (const auto& result : results) {
    list.push_back(result ? json_of(*result) : json_of(result.error()));
  }
  return to_cbor({{"results", std::move(list)}});
}

// Runs `read` on the decoded message; what is wrong with it becomes an Error.
template <class Read>
auto parsed(std::string_view bytes, std::string_view what, Read read)
    -> std::expected<decltype(read(std::declval<const json&>())), Error> {
  try {
    return read(json::from_cbor(bytes.begin(), bytes.end()));
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

template <class T, class Read>
std::expected<std::vector<std::expected<T, Refusal>>, Refusal> decode_results(
    std::string_view bytes, Read read) {
  return parsed_reply(bytes, [&](const json& message) {
    std::vector<std::expected<T, Refusal>> results;
    for (const json& value : message.at("results")) {
      if (is_refusal(value)) {
        results.emplace_back(std::unexpected(refusal_of(value)));
      } else {
        results.emplace_back(read(value));
      }
    }
    return results;
  });
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
                             message.at("first_layer").get<std::uint32_t>(),
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
std::string encode(const std::vector<AdvanceResult>& results) {
  return encode_results(results);
}
std::string encode(const std::vector<ShardResult>& results) {
  return encode_results(results);
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

std::expected<std::vector<AdvanceResult>, Refusal> decode_advances(std::string_view bytes) {
  return decode_results<Advance>(bytes, advance_of);
}

std::expected<std::vector<ShardResult>, Refusal> decode_outputs(std::string_view bytes) {
  return decode_results<ShardOutput>(bytes, shard_output_of);
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
