#include "runner/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace duet::runner {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // bytes of one read() or write()

// PATH.part, removed again unless it gets its name.
class PartFile {
 public:
  explicit PartFile(std::string target) : target_(std::move(target)), path_(target_ + ".part") {}
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
    if (exists_) ::unlink(path_.c_str());
  }

  Status create() {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) return failure(ErrorCode::kIo, "{}: cannot create: {}", path_, std::strerror(errno));
    exists_ = true;
    return {};
  }
  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), kMostAtOnce));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failure(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return {};
  }
  Status finish() {
    if (::fsync(fd_) != 0 || ::close(std::exchange(fd_, -1)) != 0)
      return failure(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
    if (::rename(path_.c_str(), target_.c_str()) != 0)
      return failure(ErrorCode::kIo, "{}: cannot rename to {}: {}", path_, target_, std::strerror(errno));
    exists_ = false;
    return {};
  }

 private:
  std::string target_, path_;
  int fd_ = -1;
  bool exists_ = false;
};

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
  struct stat info {};
  bool exists = ::stat(path.c_str(), &info) == 0;
  // Renaming would replace a device by a file.
  if (exists && !S_ISREG(info.st_mode))
    return failure(ErrorCode::kIo, "{}: is {}, expected a regular file or none", path,
                   S_ISDIR(info.st_mode) ? "a directory" : "a device or pipe");
  std::error_code ignored;
  std::string target = exists ? std::filesystem::canonical(path, ignored).string() : path;
  PartFile file(target.empty() ? path : target);
  DUET_TRY(file.create());
  for (auto part : parts) DUET_TRY(file.write(part));
  return file.finish();
}

}  // namespace duet::runner
