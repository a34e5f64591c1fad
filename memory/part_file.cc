#include "memory/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace duet::memory {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // bytes of one write()

// Opens PATH and locks it. The file that was opened may have been renamed or removed by its owner before the
// lock was ours: then it is not to be touched, and the next attempt finds another.
Result<int> open_locked(const std::string& target, const std::string& path) {
  while (true) {
    // Without O_TRUNC: it may still be another's. O_NONBLOCK: a FIFO must not hang us.
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0) {
      int problem = errno;
      if (problem == ELOOP)  // whoever put it there chose what would be overwritten
        return failure(ErrorCode::kIo, "{}: is a symbolic link, expected a file or none", path);
      std::error_code ignored;
      std::filesystem::path directory = std::filesystem::path(path).parent_path();
      if (problem == ENOENT && !directory.empty() && !std::filesystem::exists(directory, ignored))
        return failure(ErrorCode::kIo, "{}: the directory {} does not exist", target, directory.string());
      return failure(ErrorCode::kIo, "{}: cannot create: {}", path, std::strerror(problem));
    }
    // File systems without locks give other errors than EWOULDBLOCK, and none of two writers is refused.
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      ::close(fd);
      return failure(ErrorCode::kIo,
                     "{}: another process is writing it; wait for its end, or choose another name", path);
    }
    struct stat ours {
    }, named{};
    bool same = ::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &named) == 0 && ours.st_dev == named.st_dev &&
                ours.st_ino == named.st_ino;
    if (same && S_ISREG(ours.st_mode)) return fd;
    ::close(fd);
    if (same) return failure(ErrorCode::kIo, "{}: is no regular file, expected a file or none", path);
  }
}

}  // namespace

Result<PartFile> PartFile::create(const std::string& target) {
  struct stat old {};
  const bool exists = ::stat(target.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode))
    return failure(ErrorCode::kIo, "{}: is a directory, expected a file", target);
  if (exists && !S_ISREG(old.st_mode))
    return failure(ErrorCode::kIo, "{}: is no regular file, and renaming would replace it; name another",
                   target);
  if (exists && ::access(target.c_str(), W_OK) != 0)
    return failure(ErrorCode::kIo, "{}: cannot write: {}", target, std::strerror(errno));
  std::error_code ignored;
  std::string file = exists ? std::filesystem::canonical(target, ignored).string() : target;
  if (file.empty()) file = target;
  std::string path = file + ".part";
  DUET_ASSIGN(int fd, open_locked(target, path));
  PartFile part(std::move(file), std::move(path), fd);
  if (::ftruncate(fd, 0) != 0)
    return failure(ErrorCode::kIo, "{}: cannot write: {}", part.path_, std::strerror(errno));
  // Whoever could not read the old file cannot read the new one.
  if (exists) [[maybe_unused]]
    int kept = ::fchmod(fd, old.st_mode & 07777);
  return part;
}

PartFile::PartFile(PartFile&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      removed_at_end_(other.removed_at_end_) {}

PartFile::~PartFile() {
  if (fd_ < 0) return;
  if (removed_at_end_) ::unlink(path_.c_str());  // while it is locked: behind us it may be another's
  ::close(fd_);
}

Status PartFile::write(const void* data, size_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    ssize_t n = ::write(fd_, from, std::min(bytes, kMostAtOnce));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
    from += n;
    bytes -= static_cast<size_t>(n);
  }
  return {};
}

Status PartFile::finish() {
  if (::fsync(fd_) != 0 && errno != EINVAL)
    return failure(ErrorCode::kIo, "{}: cannot write: {}", path_, std::strerror(errno));
  if (std::rename(path_.c_str(), target_.c_str()) != 0)
    return failure(ErrorCode::kIo, "{}: cannot rename to {}: {}", path_, target_, std::strerror(errno));
  ::close(std::exchange(fd_, -1));
  return {};
}

}  // namespace duet::memory
