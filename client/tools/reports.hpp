#pragma once
// The admin pages as text for people.

#include <expected>
#include <string>
#include <string_view>

#include <hotkv/error.hpp>

namespace hotkv::tools {

struct Report {
  std::string text;
  bool found = true;  // `why`: whether the session has a live context
};

// Each takes the page's JSON. Errors: protocol_error (it is not what this tool knows).
[[nodiscard]] std::expected<Report, Error> status_report(std::string_view json);
[[nodiscard]] std::expected<Report, Error> contexts_report(std::string_view json);
[[nodiscard]] std::expected<Report, Error> why_report(std::string_view json);
// What an error page says.
[[nodiscard]] std::string error_text(std::string_view json);

}  // namespace hotkv::tools
