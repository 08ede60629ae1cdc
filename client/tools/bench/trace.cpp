#include "client/tools/bench/trace.hpp"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

namespace hotkv::bench {
namespace {

using nlohmann::json;

constexpr std::string_view kCsvHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

constexpr std::int64_t kTokensMax = 1 << 30;  // far above any context, and sums do not overflow

struct BadNumber : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::uint32_t tokens_of(const json& value, const char* key) {
  const json& number = value.at(key);
  if (number.is_number_integer()) {
    const auto tokens = number.get<std::int64_t>();
    if (tokens >= 0 && tokens <= kTokensMax) return static_cast<std::uint32_t>(tokens);
  }
  throw BadNumber(std::string(key) + ": expected a number of tokens, got " + number.dump());
}

// Its exceptions and json's own end in read_trace.
TraceRequest request_of_json(const std::string& line) {
  const json value = json::parse(line);
  return {value.at("timestamp").get<double>() / 1000, tokens_of(value, "input_length"),
          tokens_of(value, "output_length"),
          value.at("hash_ids").get<std::vector<std::uint64_t>>()};
}

// "2023-11-16 18:17:03.9799600,4808,10"
std::optional<TraceRequest> request_of_csv(const std::string& line) {
  std::tm date{};
  double seconds = 0;
  long long input_tokens = 0, output_tokens = 0;
  char end = 0;
  if (std::sscanf(line.c_str(), "%d-%d-%d %d:%d:%lf,%lld,%lld%c", &date.tm_year, &date.tm_mon,
                  &date.tm_mday, &date.tm_hour, &date.tm_min, &seconds, &input_tokens,
                  &output_tokens, &end) != 8) {
    return std::nullopt;
  }
  for (const long long tokens : {input_tokens, output_tokens}) {
    if (tokens < 0 || tokens > kTokensMax) return std::nullopt;
  }
  date.tm_year -= 1900;
  date.tm_mon -= 1;
  return TraceRequest{static_cast<double>(::timegm(&date)) + seconds,
                      static_cast<std::uint32_t>(input_tokens),
                      static_cast<std::uint32_t>(output_tokens),
                      {}};
}

std::unexpected<Error> refused(const std::filesystem::path& path, std::size_t line,
                               std::string cause) {
  return std::unexpected(Error{ErrorCode::invalid_argument, "read trace",
                               path.string() + " line " + std::to_string(line), std::move(cause)});
}

}  // namespace

std::expected<std::vector<TraceRequest>, Error> read_trace(const std::filesystem::path& path,
                                                           std::size_t limit) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::unexpected(system_error("open trace", path.string()));
  std::vector<TraceRequest> requests;
  bool is_csv = false;
  std::string line;
  for (std::size_t number = 1; (limit == 0 || requests.size() < limit) && std::getline(file, line);
       ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (number == 1 && line == kCsvHeader) {
      is_csv = true;
      continue;
    }
    if (is_csv) {
      auto request = request_of_csv(line);
      if (!request) return refused(path, number, "not a date, a time and two numbers of tokens");
      requests.push_back(std::move(*request));
      continue;
    }
    try {
      requests.push_back(request_of_json(line));
    } catch (const std::exception& failure) {
      return refused(path, number, failure.what());
    }
  }
  if (requests.empty()) return refused(path, 1, "there is no request");
  const double first = requests.front().arrival_s;
  for (TraceRequest& request : requests) request.arrival_s -= first;
  return requests;
}

}  // namespace hotkv::bench
