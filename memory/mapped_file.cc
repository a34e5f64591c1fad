#include "memory/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace duet::memory {
namespace {

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

Result<struct stat> open_file(const std::string& path, int flags, Descriptor& file) {
  file.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
  if (file.fd < 0) return failure(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  struct stat info {};
  if (::fstat(file.fd, &info) != 0)
    return failure(ErrorCode::kIo, "{}: cannot stat: {}", path, std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return failure(ErrorCode::kIo, "{}: is a directory, expected a file", path);
  return info;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  Descriptor file;
  DUET_ASSIGN(auto info, open_file(path, O_NONBLOCK, file));  // a FIFO without a writer must not hang us
  if (!S_ISREG(info.st_mode))
    return failure(ErrorCode::kIo, "{}: not a regular file, cannot be mapped", path);
  if (info.st_size == 0) return failure(ErrorCode::kBadInput, "{}: the file is empty", path);
  auto size = static_cast<size_t>(info.st_size);
  std::string kept_path = path;  // before the mapping, so that a failing allocation leaks nothing
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED)
    return failure(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path, size, std::strerror(errno));
  return MappedFile(std::move(kept_path), static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  Descriptor file;
  DUET_ASSIGN(auto info, open_file(path, 0, file));
  if (info.st_size > 0 && static_cast<size_t>(info.st_size) > max_bytes)
    return failure(ErrorCode::kBadInput, "{}: {} bytes, expected at most {}", path, info.st_size, max_bytes);
  std::string text;
  char buffer[65536];
  while (true) {
    ssize_t n = ::read(file.fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(errno));
    if (n == 0) return text;
    if (text.size() + static_cast<size_t>(n) > max_bytes)
      return failure(ErrorCode::kBadInput, "{}: more than {} bytes", path, max_bytes);
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace duet::memory
