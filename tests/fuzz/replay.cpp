// Runs a target over files that a fuzzer has kept: replay CORPUS REGRESSIONS. A finding ends the
// process; a corpus without a file is a failure too, for nothing would have been shown.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

std::size_t replay(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last line names the input of a finding
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  return files.size();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s CORPUS-FOLDER REGRESSIONS-FOLDER\n", argv[0]);
    return 2;
  }
  const std::size_t inputs = replay(argv[1]);
  if (inputs == 0) {
    std::fprintf(stderr, "%s holds no input\n", argv[1]);
    return 1;
  }
  std::printf("%zu inputs and %zu regressions\n", inputs, replay(argv[2]));
  return 0;
}
