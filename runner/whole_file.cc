#include "runner/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "memory/part_file.h"

namespace duet::runner {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // bytes of one read()

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  std::string kept = path;
  // Not to wait for the writer of a FIFO.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return failure(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  InputFile file(std::move(kept), fd, 0);
  struct stat info {};
  if (::fstat(fd, &info) != 0)
    return failure(ErrorCode::kIo, "{}: cannot stat: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    return failure(ErrorCode::kIo, "{}: is {}, expected a regular file", path,
                   S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  return file;
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      bytes_(other.bytes_),
      read_(other.read_) {}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

Status InputFile::read(std::span<std::byte> to) {
  while (!to.empty()) {
    ssize_t n = ::read(fd_, to.data(), std::min(to.size(), kMostAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot read: {}", path_, std::strerror(errno));
    if (n == 0)
      return failure(ErrorCode::kBadInput, "{}: the file ends after {} bytes, expected {} more", path_, read_,
                     to.size());
    read_ += static_cast<uint64_t>(n);
    to = to.subspan(static_cast<size_t>(n));
  }
  return {};
}

void InputFile::rewind() {
  ::lseek(fd_, 0, SEEK_SET);
  read_ = 0;
}

Status write_whole_file(const std::string& path, std::span<const std::span<const std::byte>> parts) {
  DUET_ASSIGN(auto file, memory::PartFile::create(path));
  for (auto part : parts) DUET_TRY(file.write(part.data(), part.size()));
  return file.finish();
}

}  // namespace duet::runner
