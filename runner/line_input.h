// Lines from a file, a pipe, a terminal or arguments, without waiting where nothing is there yet.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/error.h"

namespace duet::runner {

// Set by SIGINT from install_interrupt_handler() on; a second SIGINT ends the process at once.
bool interrupted();
void install_interrupt_handler();

class LineInput {
 public:
  static constexpr size_t kMaxLineBytes = size_t{16} << 20;

  // "-" is standard input. Errors: kIo.
  static Result<LineInput> open(const std::string& path);
  static LineInput of_text(std::string text);  // lines of a text; a final line feed makes no line of its own
  // Each text as if it stood in a file, with a line feed.
  static LineInput of_arguments(const std::vector<std::string>& texts);

  LineInput(LineInput&& other) noexcept;
  LineInput& operator=(LineInput&&) = delete;
  ~LineInput();

  struct Next {
    enum class Kind { kLine, kNothingYet, kEnd } kind;
    std::string line;           // without its line feed, which is the only thing that ends a line
    bool ended_by_feed = true;  // false: the input ended without one
  };
  // wait: blocks until a line or the end is there, or until the process is interrupted (then kNothingYet).
  // Errors: kIo; kBadInput for a line above kMaxLineBytes.
  Result<Next> next(bool wait);

  bool is_terminal() const;
  bool is_file(const std::string& path) const;  // reads the very file that `path` names
  const std::string& name() const { return name_; }

 private:
  LineInput(std::string name, int fd) : name_(std::move(name)), fd_(fd) {}

  std::string name_;
  int fd_ = -1;  // -1: only what is in the buffer
  bool ended_ = false;
  std::string buffer_;
  size_t start_ = 0;    // of the next line in buffer_
  size_t scanned_ = 0;  // no line feed in buffer_[start_, scanned_)
  uint64_t lines_ = 0;
};

}  // namespace duet::runner
