#pragma once
// The traces that lie beside the project: HOTKV_TRACES_FOLDER, else ../shared/traces as seen from
// it. Where they are not, tests skip and say so.

#include <cstdlib>
#include <filesystem>

namespace hotkv::testing {

inline std::filesystem::path traces_folder() {
  if (const char* folder = std::getenv("HOTKV_TRACES_FOLDER")) return folder;
  return std::filesystem::path(HOTKV_SOURCE_FOLDER).parent_path() / "shared" / "traces";
}

}  // namespace hotkv::testing
