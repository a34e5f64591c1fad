// Git LFS leaves a small text file in place of a large one that was not fetched. Whoever reads files of a
// model asks here first, so that the user learns that instead of "not valid JSON".
#pragma once

#include <string_view>

#include "memory/error.h"

namespace duet::memory {

// An error with the real file's size when `content`, a file from its beginning, is a pointer. `path` is for
// the message. Errors: kBadInput.
Status refuse_git_lfs_pointer(std::string_view path, std::string_view content);

}  // namespace duet::memory
