#include "client/tools/bench/trace.hpp"

#include <cstdio>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace hotkv::bench {
namespace {

using nlohmann::json;

constexpr std::string_view kCsvHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";

// json's own exceptions end in read_trace.
TraceRequest request_of_json(const std::string& line) {
  const json value = json::parse(line);
  return {value.at("timestamp").get<double>() / 1000, value.at("input_length").get<std::uint32_t>(),
          value.at("output_length").get<std::uint32_t>(),
          value.at("hash_ids").get<std::vector<std::uint64_t>>()};
}

// "2023-11-16 18:17:03.9799600,4808,10"
std::optional<TraceRequest> request_of_csv(const std::string& line) {
  std::tm date{};
  double seconds = 0;
  TraceRequest request;
  char end = 0;
  if (std::sscanf(line.c_str(), "%d-%d-%d %d:%d:%lf,%u,%u%c", &date.tm_year, &date.tm_mon,
                  &date.tm_mday, &date.tm_hour, &date.tm_min, &seconds, &request.input_tokens,
                  &request.output_tokens, &end) != 8) {
    return std::nullopt;
  }
  date.tm_year -= 1900;
  date.tm_mon -= 1;
  request.arrival_s = static_cast<double>(::timegm(&date)) + seconds;
  return request;
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
    } catch (const json::exception& failure) {
      return refused(path, number, failure.what());
    }
  }
  if (requests.empty()) return refused(path, 1, "there is no request");
  const double first = requests.front().arrival_s;
  for (TraceRequest& request : requests) request.arrival_s -= first;
  return requests;
}

}  // namespace hotkv::bench
