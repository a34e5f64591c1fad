// A file that appears under its name only when it is complete: written as NAME.part, synced and renamed.
// Whatever goes wrong before, up to the end of the process, what stood under the name stays.
//
//  - A link stays a link: what it names is replaced. The permissions of the old file stay.
//  - The .part file is locked, so that of two processes that write the same file the second is refused. What
//  a
//    killed one left behind is not locked, and written over.
#pragma once

#include <cstddef>
#include <string>

#include "memory/error.h"

namespace duet::memory {

class PartFile {
 public:
  // Errors: kIo, when the target is a directory, a device or not writable, when its directory is missing, or
  // when another process writes it.
  static Result<PartFile> create(const std::string& target);

  PartFile(PartFile&& other) noexcept;
  PartFile& operator=(PartFile&&) = delete;
  ~PartFile();  // removes the .part file, unless it is finished or kept

  const std::string& path() const { return path_; }  // of the .part file
  int fd() const { return fd_; }
  // All of it. Errors: kIo.
  Status write(const void* data, size_t bytes);
  // Syncs, and gives the file its name. Errors: kIo; the .part file is then removed, unless kept.
  Status finish();
  // From now on the .part file stays, whatever happens.
  void keep() { removed_at_end_ = false; }

 private:
  PartFile(std::string target, std::string path, int fd)
      : target_(std::move(target)), path_(std::move(path)), fd_(fd) {}

  std::string target_, path_;
  int fd_;
  bool removed_at_end_ = true;
};

}  // namespace duet::memory
