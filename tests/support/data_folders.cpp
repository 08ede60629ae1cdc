#include "tests/support/data_folders.hpp"

#include <cstdlib>

namespace hotkv::testing {
namespace {

std::filesystem::path folder_of(const char* variable, const char* name) {
  if (const char* folder = std::getenv(variable)) return folder;
  return std::filesystem::path(HOTKV_SOURCE_FOLDER).parent_path() / "shared" / name;
}

}  // namespace

std::filesystem::path models_folder() {
  return folder_of("HOTKV_MODELS_FOLDER", "models");
}

std::filesystem::path traces_folder() {
  return folder_of("HOTKV_TRACES_FOLDER", "traces");
}

}  // namespace hotkv::testing
