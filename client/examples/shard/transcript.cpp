#include "client/examples/shard/transcript.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

namespace hotkv::shard {
namespace {

using adapter::TokenId;
using nlohmann::json;

// The line at the front of `text`, which is taken off; nothing if no line ends in it.
std::optional<std::string_view> take_line(std::string_view& text) {
  const std::size_t end = text.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 1);
  return line;
}

std::string header_of(const Transcript::Beginning& beginning) {
  return json{{"session", beginning.key.session.escaped()},
              {"epoch", beginning.key.epoch.value()},
              {"model", beginning.model_id},
              {"prompt", beginning.prompt}}
      .dump();
}

}  // namespace

std::expected<Transcript, Error> Transcript::open(const std::filesystem::path& path,
                                                  const Beginning& beginning) {
  Transcript transcript(beginning);
  transcript.path_ = path;
  if (path.empty()) return transcript;
  std::error_code unseen;  // a path that cannot be looked at cannot be opened either
  if (std::filesystem::exists(path, unseen)) {
    std::ifstream old(path, std::ios::binary);
    if (!old) return std::unexpected(system_error("open transcript", path.string()));
    const std::string text((std::istreambuf_iterator<char>(old)), std::istreambuf_iterator<char>());
    if (auto read = transcript.read(text); !read) return std::unexpected(read.error());
    transcript.is_continued_ = true;
  }
  // Written anew beside the old one, so that there is a whole one at any time: a line that was cut
  // off must not run into the next one.
  const std::filesystem::path fresh = path.string() + ".new";
  transcript.file_.open(fresh, std::ios::binary | std::ios::trunc);
  transcript.file_ << header_of(transcript.beginning_) << '\n';
  for (std::size_t i = transcript.prompt().size(); i < transcript.tokens_.size(); ++i) {
    transcript.file_ << transcript.tokens_[i] << '\n';
  }
  if (!transcript.file_.flush() || std::rename(fresh.c_str(), path.c_str()) != 0) {
    return std::unexpected(system_error("write transcript", path.string()));
  }
  return transcript;
}

std::expected<void, Error> Transcript::read(const std::string& text) {
  const auto refused = [&](const std::string& cause) {
    return std::unexpected(
        Error{ErrorCode::invalid_argument, "read transcript", path_.string(), cause});
  };
  std::string_view rest = text;
  const auto header = take_line(rest);
  if (!header) return refused("it is no transcript: it has no first line");
  try {
    const json first = json::parse(*header);
    const auto session = unescape_bytes(first.at("session").get<std::string>());
    if (!session) return refused(session.error().message());
    const auto id = SessionId::from(*session);
    if (!id) return refused(id.error().message());
    if (first.at("model") != beginning_.model_id) {
      return refused("it is of model " + first.at("model").dump() + ", not " + beginning_.model_id);
    }
    const json& prompt = first.at("prompt");
    // json would make an unsigned number of a negative one.
    const auto is_token = [](const json& token) {
      return token.is_number_unsigned() && token <= std::numeric_limits<TokenId>::max();
    };
    if (!first.at("epoch").is_number_unsigned()) return refused("its epoch is no epoch");
    if (prompt.empty() || !std::ranges::all_of(prompt, is_token)) {
      return refused("its prompt is no list of tokens");
    }
    beginning_.key = {*id, Epoch{first.at("epoch").get<std::uint64_t>()}};
    beginning_.prompt = prompt.get<std::vector<TokenId>>();
  } catch (const json::exception& failure) {
    return refused(failure.what());
  }
  tokens_ = beginning_.prompt;
  while (const auto line = take_line(rest)) {
    TokenId token = 0;
    const auto [end, code] = std::from_chars(line->begin(), line->end(), token);
    if (code != std::errc() || end != line->end()) {
      return refused("line " + std::to_string(written() + 2) + " is no token");
    }
    tokens_.push_back(token);
  }
  return {};
}

std::expected<void, Error> Transcript::add(TokenId token) {
  tokens_.push_back(token);
  if (path_.empty()) return {};
  file_ << token << '\n';
  if (!file_.flush()) return std::unexpected(system_error("write transcript", path_.string()));
  return {};
}

}  // namespace hotkv::shard
