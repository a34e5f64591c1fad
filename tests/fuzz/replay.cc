// Runs a fuzz target over files, and over those with a little damage: what the tests do with the kept corpus.
//
// usage: NAME_replay FILE_OR_DIRECTORY...
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace {

void run(const std::vector<uint8_t>& bytes) { LLVMFuzzerTestOneInput(bytes.data(), bytes.size()); }

void run_damaged(std::vector<uint8_t> bytes) {
  run(bytes);
  if (bytes.empty()) return;
  const size_t middle = bytes.size() / 2;
  for (size_t at : {size_t{0}, middle / 2, middle, bytes.size() - 1}) {
    bytes[at] = static_cast<uint8_t>(bytes[at] ^ 0x55);
    run(bytes);
    bytes[at] = static_cast<uint8_t>(bytes[at] ^ 0x55);
  }
  bytes.resize(middle);
  run(bytes);
}

}  // namespace

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  size_t files = 0;
  for (int i = 1; i < argc; ++i) {
    std::vector<fs::path> paths;
    if (fs::is_directory(argv[i])) {
      for (const auto& entry : fs::directory_iterator(argv[i])) paths.push_back(entry.path());
    } else {
      paths.emplace_back(argv[i]);
    }
    for (const fs::path& path : paths) {
      std::ifstream file(path, std::ios::binary);
      if (!file) return std::fprintf(stderr, "%s: cannot read\n", path.c_str()), 1;
      std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
      run_damaged(std::move(bytes));
      ++files;
    }
  }
  std::printf("%zu files replayed\n", files);
  return files > 0 ? 0 : 1;
}
