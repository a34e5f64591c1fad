#include "memory/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>

namespace duet::memory {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
const auto g_start = std::chrono::steady_clock::now();

std::string_view file_name(std::string_view path) {
  auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level; }

void log(LogLevel level, std::string_view message, std::source_location where) {
  if (level < g_level.load()) return;
  auto us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - g_start)
                .count();
  auto s = us / 1'000'000;
  std::string line =
      fmt::format("{} {:02}:{:02}:{:02}.{:06} duet:{}:{}] {}\n", "DIWE"[static_cast<int>(level)], s / 3600,
                  s / 60 % 60, s % 60, us % 1'000'000, file_name(where.file_name()), where.line(), message);
  // A log line that cannot be written is not worth failing for.
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace duet::memory
