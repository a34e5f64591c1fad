#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "memory/error.h"
#include "memory/log.h"

namespace duet::fuzz {
namespace {

const bool kQuiet = (memory::set_log_level(memory::LogLevel::kOff), true);

struct ScratchDirectory {
  std::string path = (std::filesystem::temp_directory_path() / "duet-fuzz-XXXXXX").string();
  ScratchDirectory() { DUET_CHECK(::mkdtemp(path.data())); }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
};

}  // namespace

MemoryFile::MemoryFile()
    : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)),
      path_("/proc/self/fd/" + std::to_string(descriptor_)) {
  DUET_CHECK(descriptor_ >= 0);
}

void MemoryFile::set(std::string_view bytes) {
  DUET_CHECK(::ftruncate(descriptor_, 0) == 0);
  DUET_CHECK(::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
}

uint8_t Choices::byte() {
  if (size_ == 0) return 0;
  --size_;
  return *data_++;
}

void Choices::fill(std::span<std::byte> bytes) {
  size_t n = std::min(bytes.size(), size_);
  if (n > 0) std::memcpy(bytes.data(), data_, n);
  if (n < bytes.size()) std::memset(bytes.data() + n, 0, bytes.size() - n);
  data_ += n;
  size_ -= n;
}

const std::string& scratch_directory() {
  static const ScratchDirectory directory;
  return directory.path;
}

}  // namespace duet::fuzz
