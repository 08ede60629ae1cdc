#include "client/tools/text_table.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>

namespace hotkv::tools {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && cell[0] >= '0' && cell[0] <= '9';
}

}  // namespace

std::string TextTable::text() const {
  std::vector<std::size_t> widths(rows_.front().size());
  // A column is right-aligned where its first row below the header is a number.
  std::vector<bool> right(widths.size());
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    for (std::size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], rows_[row][column].size());
      if (row == 1) right[column] = is_number(rows_[row][column]);
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (std::size_t column = 0; column < widths.size(); ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      if (column != 0) line += "  ";
      line += right[column] ? padding + row[column] : row[column] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit].data());
  return text;
}

std::string human_ms(std::uint64_t ms) {
  struct Unit {
    std::string_view name;
    std::uint64_t ms;
  };
  constexpr std::array<Unit, 5> kUnits{
      {{"d", 86'400'000}, {"h", 3'600'000}, {"m", 60'000}, {"s", 1000}, {"ms", 1}}};
  for (std::size_t index = 0; index < kUnits.size(); ++index) {
    if (ms < kUnits[index].ms) continue;
    std::string text = std::to_string(ms / kUnits[index].ms) + std::string(kUnits[index].name);
    const std::uint64_t rest = ms % kUnits[index].ms;
    if (index < 3 && rest >= kUnits[index + 1].ms) {
      text +=
          " " + std::to_string(rest / kUnits[index + 1].ms) + std::string(kUnits[index + 1].name);
    }
    return text;
  }
  return "0ms";
}

}  // namespace hotkv::tools
