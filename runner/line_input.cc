#include "runner/line_input.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace duet::runner {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;
// Holds a byte once the process is interrupted: poll() sees it even if the signal came just before.
int g_interrupt_pipe[2] = {-1, -1};

void on_interrupt(int) {
  int saved = errno;
  g_interrupted = 1;
  if (g_interrupt_pipe[1] >= 0) [[maybe_unused]]
    auto ignored = ::write(g_interrupt_pipe[1], "", 1);
  errno = saved;
}

}  // namespace

bool interrupted() { return g_interrupted != 0; }

void install_interrupt_handler() {
  if (g_interrupt_pipe[0] < 0 && ::pipe2(g_interrupt_pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    g_interrupt_pipe[0] = g_interrupt_pipe[1] = -1;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  // Not restarting: a blocked read must return. Once only: the second signal has its usual effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigaction(SIGINT, &action, nullptr);
}

Result<LineInput> LineInput::open(const std::string& path) {
  if (path == "-") return LineInput("standard input", STDIN_FILENO);
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return failure(ErrorCode::kIo, "{}: cannot open: {}", path, std::strerror(errno));
  LineInput input(path, fd);
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
    return failure(ErrorCode::kIo, "{}: is a directory, expected a text file", path);
  return input;
}

LineInput LineInput::of_arguments(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += text + "\n";
  return of_text(std::move(all));
}

LineInput LineInput::of_text(std::string text) {
  LineInput input("arguments", -1);
  input.buffer_ = std::move(text);
  input.ended_ = true;
  return input;
}

LineInput::LineInput(LineInput&& other) noexcept
    : name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      ended_(other.ended_),
      buffer_(std::move(other.buffer_)),
      start_(other.start_),
      scanned_(other.scanned_),
      lines_(other.lines_) {}

LineInput::~LineInput() {
  if (fd_ > STDIN_FILENO) ::close(fd_);
}

bool LineInput::is_file(const std::string& path) const {
  struct stat mine {
  }, other{};
  return fd_ >= 0 && ::fstat(fd_, &mine) == 0 && ::stat(path.c_str(), &other) == 0 &&
         mine.st_dev == other.st_dev && mine.st_ino == other.st_ino;
}

bool LineInput::is_terminal() const { return fd_ >= 0 && ::isatty(fd_); }

Result<LineInput::Next> LineInput::next(bool wait) {
  while (true) {
    size_t feed = buffer_.find('\n', scanned_);
    if (feed != std::string::npos && feed - start_ <= kMaxLineBytes) {
      Next next{Next::Kind::kLine, buffer_.substr(start_, feed - start_), true};
      start_ = scanned_ = feed + 1;
      ++lines_;
      return next;
    }
    scanned_ = std::min(feed, buffer_.size());
    if (scanned_ - start_ > kMaxLineBytes)
      return failure(ErrorCode::kBadInput,
                     "{}: line {} is longer than {} bytes, expected a text with line feeds", name_,
                     lines_ + 1, kMaxLineBytes);
    if (ended_) {
      if (start_ == buffer_.size()) return Next{Next::Kind::kEnd, "", true};
      Next next{Next::Kind::kLine, buffer_.substr(start_), false};
      start_ = scanned_ = buffer_.size();
      return next;
    }
    buffer_.erase(0, start_);
    scanned_ -= start_;
    start_ = 0;
    // Regular files are always readable; poll() tells so at once.
    struct pollfd watched[2] = {{fd_, POLLIN, 0}, {g_interrupt_pipe[0], POLLIN, 0}};
    int count = ::poll(watched, 2, wait ? -1 : 0);
    if (interrupted()) return Next{Next::Kind::kNothingYet, "", true};
    if (count <= 0 || watched[0].revents == 0) {
      if (!wait) return Next{Next::Kind::kNothingYet, "", true};
      continue;
    }
    char chunk[65536];
    ssize_t n = ::read(fd_, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      if (interrupted()) return Next{Next::Kind::kNothingYet, "", true};
      continue;
    }
    if (n < 0) return failure(ErrorCode::kIo, "{}: cannot read: {}", name_, std::strerror(errno));
    if (n == 0)
      ended_ = true;
    else
      buffer_.append(chunk, static_cast<size_t>(n));
  }
}

}  // namespace duet::runner
