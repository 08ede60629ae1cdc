#pragma once
// Data that lies beside the project and is not part of it. Where it is not, tests skip and say so.

#include <filesystem>

namespace hotkv::testing {

// The trained model: HOTKV_MODELS_FOLDER, else ../shared/models as seen from the project.
[[nodiscard]] std::filesystem::path models_folder();
// Recorded traffic: HOTKV_TRACES_FOLDER, else ../shared/traces.
[[nodiscard]] std::filesystem::path traces_folder();

}  // namespace hotkv::testing
