#include "runner/text_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

namespace duet::runner {
namespace {
constexpr size_t kBufferBytes = 65536;
}

Result<TextOutput> TextOutput::open(const std::string& path) {
  if (path.empty() || path == "-") return TextOutput("standard output", "", STDOUT_FILENO);
  struct stat info {};
  bool exists = ::stat(path.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    return failure(ErrorCode::kIo, "{}: is a directory, expected a file", path);
  if (exists && ::access(path.c_str(), W_OK) != 0)
    return failure(ErrorCode::kIo, "{}: cannot write: {}", path, std::strerror(errno));
  bool direct = exists && !S_ISREG(info.st_mode);
  // A link stays a link: what it names is replaced.
  std::error_code ignored;
  std::string file = exists && !direct ? std::filesystem::canonical(path, ignored).string() : path;
  if (file.empty()) file = path;
  std::string part = direct ? "" : file + ".part";
  const std::string& target = direct ? path : part;
  int fd = ::open(target.c_str(), (direct ? O_WRONLY : O_WRONLY | O_CREAT | O_TRUNC) | O_CLOEXEC, 0666);
  if (fd < 0) {
    int problem = errno;
    std::filesystem::path directory = std::filesystem::path(target).parent_path();
    if (problem == ENOENT && !directory.empty() && !std::filesystem::exists(directory, ignored))
      return failure(ErrorCode::kIo, "{}: the directory {} does not exist", path, directory.string());
    return failure(ErrorCode::kIo, "{}: cannot create: {}", target, std::strerror(problem));
  }
  if (exists && !direct) [[maybe_unused]]
    int kept =
        ::fchmod(fd, info.st_mode & 07777);  // whoever could not read the old file cannot read the new one
  return TextOutput(std::move(file), std::move(part), fd);
}

TextOutput::TextOutput(TextOutput&& other) noexcept
    : path_(std::move(other.path_)),
      part_(std::move(other.part_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)),
      written_(other.written_) {}

TextOutput::~TextOutput() {
  if (fd_ <= STDERR_FILENO) return;
  ::close(fd_);
  if (!part_.empty() && written_ == 0) ::unlink(part_.c_str());
}

bool TextOutput::is_terminal() const { return ::isatty(fd_); }

Status TextOutput::write(std::string_view text) {
  buffer_ += text;
  return buffer_.size() >= kBufferBytes ? flush() : Status();
}

Status TextOutput::flush() {
  size_t done = 0;
  while (done < buffer_.size()) {
    ssize_t n = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {  // somebody made our pipe non-blocking
      struct pollfd ready {
        fd_, POLLOUT, 0
      };
      ::poll(&ready, 1, -1);
      continue;
    }
    if (n < 0) {
      int problem = errno;
      buffer_.erase(0, done);
      if (problem == EPIPE) return failure(ErrorCode::kClosedPipe, "{}: nobody reads any more", path_);
      return failure(ErrorCode::kIo, "{}: cannot write: {}", part_.empty() ? path_ : part_,
                     std::strerror(problem));
    }
    done += static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
  }
  buffer_.clear();
  return {};
}

Status TextOutput::finish() {
  DUET_TRY(flush());
  if (fd_ <= STDERR_FILENO) return {};
  int fd = std::exchange(fd_, -1);
  if ((!part_.empty() && ::fsync(fd) != 0 && errno != EINVAL) | (::close(fd) != 0))
    return failure(ErrorCode::kIo, "{}: cannot write: {}", part_.empty() ? path_ : part_,
                   std::strerror(errno));
  if (part_.empty()) return {};
  if (std::rename(part_.c_str(), path_.c_str()) != 0)
    return failure(ErrorCode::kIo, "{}: cannot rename to {}: {}", part_, path_, std::strerror(errno));
  part_.clear();
  return {};
}

}  // namespace duet::runner
