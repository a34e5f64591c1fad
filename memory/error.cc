#include "memory/error.h"

#include <cstdio>
#include <cstdlib>

namespace duet::memory {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::kUsage:
      return 2;
    case ErrorCode::kBadInput:
    case ErrorCode::kUnsupported:
      return 3;
    case ErrorCode::kIo:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kExhausted:
      return 4;
    case ErrorCode::kInterrupted:
      return 130;
    case ErrorCode::kClosedPipe:
      return 0;
  }
  return 4;
}

void check_failed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "duet: internal error, please report: %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace duet::memory
