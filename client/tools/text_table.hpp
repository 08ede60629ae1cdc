#pragma once
// Tables and quantities for people.

#include <cstdint>
#include <string>
#include <vector>

namespace hotkv::tools {

// Columns as wide as their widest cell and two spaces apart. Numbers (cells that begin with a
// digit) stand at the right, all else at the left.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  // As many cells as the header has.
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // A line a row, the header's first.
  [[nodiscard]] std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 GiB"; below 1 KiB "512 B".
[[nodiscard]] std::string human_bytes(std::uint64_t bytes);
// The two largest units: "3d 4h", "5m 2s", "120ms".
[[nodiscard]] std::string human_ms(std::uint64_t ms);

}  // namespace hotkv::tools
