// What the fuzz targets share. A target takes any bytes and must neither crash nor hang nor take much memory;
// what a parser says about them does not matter. The targets run under libFuzzer (docs/hostile-input.md), and
// in the tests over the kept corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace duet::fuzz {

// A file in memory with a path, for parsers that open files.
class MemoryFile {
 public:
  MemoryFile();
  const std::string& path() const { return path_; }
  void set(std::string_view bytes);

 private:
  int descriptor_;
  std::string path_;
};

// Takes choices from the front of a fuzzer's input; zeros when there is nothing left.
class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte();
  uint32_t below(uint32_t n) { return n == 0 ? 0 : (byte() | uint32_t{byte()} << 8) % n; }
  // As many bytes as are wanted, the missing ones zero.
  void fill(std::span<std::byte> bytes);

 private:
  const uint8_t* data_;
  size_t size_;
};

inline std::span<const std::byte> bytes_of(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}
inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A folder of its own that goes with the process.
const std::string& scratch_directory();

}  // namespace duet::fuzz
