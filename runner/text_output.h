// Where results go: standard output, or a file that appears under its name only when it is complete.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "memory/error.h"
#include "memory/part_file.h"

namespace duet::runner {

class TextOutput {
 public:
  // "" or "-": standard output. A regular file is written as FILE.part and renamed by finish() (see
  // memory/part_file.h); a FIFO or a device is written to directly. Errors: kIo.
  static Result<TextOutput> open(const std::string& path);

  TextOutput(TextOutput&& other) noexcept;
  TextOutput& operator=(TextOutput&&) = delete;
  ~TextOutput();

  // Buffered. Errors: kIo (a full disk, …), kClosedPipe when nobody reads any more.
  Status write(std::string_view text);
  Status flush();
  // Flushes, and gives the file its name. Without it a .part file stays, with all that was flushed, if that
  // is anything.
  Status finish();

  bool is_terminal() const;
  // The file that is written, and stays if the command stops before finish(); "" when it is no .part file.
  const std::string& part_path() const;
  uint64_t bytes_written() const { return written_; }

 private:
  TextOutput(std::string name, std::optional<memory::PartFile> part, int fd)
      : name_(std::move(name)), part_(std::move(part)), fd_(fd) {}

  std::string name_;                      // for messages
  std::optional<memory::PartFile> part_;  // then fd_ is its descriptor
  int fd_;
  std::string buffer_;
  uint64_t written_ = 0;
};

}  // namespace duet::runner
