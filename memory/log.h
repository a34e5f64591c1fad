// Log lines on stderr, in the form of the reference runner:
//   I 00:00:00.004127 duet:shared_memory_manager.cc:88] Allocated shared buffer for method et_module_init,
//   ...
// The time is that since the process first logged or asked. Thread-safe; one write per line.
#pragma once

#include <fmt/format.h>

#include <source_location>
#include <string_view>

namespace duet::memory {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };

void set_log_level(LogLevel level);
LogLevel log_level();

// `message` is written with a line end of its own.
void log(LogLevel level, std::string_view message,
         std::source_location where = std::source_location::current());

}  // namespace duet::memory
