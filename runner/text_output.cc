#include "runner/text_output.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace duet::runner {
namespace {
constexpr size_t kBufferBytes = 65536;
}

Result<TextOutput> TextOutput::open(const std::string& path) {
  if (path.empty() || path == "-") return TextOutput("standard output", std::nullopt, STDOUT_FILENO);
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
    int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return failure(ErrorCode::kIo, "{}: cannot write: {}", path, std::strerror(errno));
    return TextOutput(path, std::nullopt, fd);
  }
  DUET_ASSIGN(auto part, memory::PartFile::create(path));
  int fd = part.fd();
  return TextOutput(path, std::move(part), fd);
}

TextOutput::TextOutput(TextOutput&& other) noexcept
    : name_(std::move(other.name_)),
      part_(std::move(other.part_)),
      fd_(std::exchange(other.fd_, -1)),
      buffer_(std::move(other.buffer_)),
      written_(other.written_) {
  other.part_.reset();
}

TextOutput::~TextOutput() {
  if (!part_ && fd_ > STDERR_FILENO) ::close(fd_);
}

const std::string& TextOutput::part_path() const {
  static const std::string none;
  return part_ ? part_->path() : none;
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
      if (problem == EPIPE) return failure(ErrorCode::kClosedPipe, "{}: nobody reads any more", name_);
      return failure(ErrorCode::kIo, "{}: cannot write: {}", part_ ? part_->path() : name_,
                     std::strerror(problem));
    }
    done += static_cast<size_t>(n);
    written_ += static_cast<uint64_t>(n);
    if (part_) part_->keep();
  }
  buffer_.clear();
  return {};
}

Status TextOutput::finish() {
  DUET_TRY(flush());
  if (part_) {
    DUET_TRY(part_->finish());
    part_.reset();
    fd_ = -1;
    return {};
  }
  if (fd_ > STDERR_FILENO && ::close(std::exchange(fd_, -1)) != 0)
    return failure(ErrorCode::kIo, "{}: cannot write: {}", name_, std::strerror(errno));
  return {};
}

}  // namespace duet::runner
