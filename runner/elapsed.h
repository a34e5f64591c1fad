// Time since a moment, for statistics.
#pragma once

#include <chrono>

namespace duet::runner {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace duet::runner
