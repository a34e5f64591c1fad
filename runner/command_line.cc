#include "runner/command_line.h"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "model/marian_builder.h"

namespace duet::runner {

void LogOptions::add_to(CLI::App& command) {
  command.add_flag("-q,--quiet", quiet, "No log, no warnings, no progress: errors only");
  command.add_option("--log-level", level, "debug, info, warning, error or off")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}))
      ->capture_default_str();
}

void LogOptions::apply() const {
  using memory::LogLevel;
  LogLevel chosen = level == "debug" ? LogLevel::kDebug
                    : level == "info" ? LogLevel::kInfo
                    : level == "warning" ? LogLevel::kWarning
                    : level == "error" ? LogLevel::kError
                                       : LogLevel::kOff;
  memory::set_log_level(quiet ? std::max(chosen, LogLevel::kError) : chosen);
}

void LimitOptions::add_to(CLI::App& command) {
  constexpr const char* kGroup = "Limits (memory is planned for them when the program is loaded)";
  command.add_option("--slots", slots, "Sentences decoded at once")->group(kGroup);
  command.add_option("--max-source-tokens", max_source_tokens, "Tokens of the longest source, </s> included")->group(kGroup);
  command.add_option("--max-target-tokens", max_target_tokens, "Tokens of the longest translation, </s> included")
      ->group(kGroup);
  command.add_option("--batch-tokens", batch_tokens, "Source tokens encoded in one call")->group(kGroup);
  command.add_option("--threads", threads, fmt::format("Threads of a session [{}]", default_threads()))->group(kGroup);
}

model::SessionOptions LimitOptions::session() const {
  model::SessionOptions options;
  options.threads = threads.value_or(default_threads());
  if (slots) options.limits[model::kSlots] = *slots;
  if (max_source_tokens) options.limits[model::kMaxSourceTokens] = *max_source_tokens;
  if (max_target_tokens) options.limits[model::kMaxTargetTokens] = *max_target_tokens;
  if (batch_tokens) options.limits[model::kBatchTokens] = *batch_tokens;
  return options;
}

int default_threads() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(count, 1, 16);  // a translation model has too little work for more
}

std::string default_program() {
  std::error_code ignored;
  auto self = std::filesystem::read_symlink("/proc/self/exe", ignored);
  return (self.parent_path().parent_path() / "share" / "duet" / "tatoeba-en-fr.duet").string();
}

Result<std::string> find_program(const std::string& asked) {
  if (!asked.empty()) return asked;
  std::string path = default_program();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return failure(ErrorCode::kIo, "{}: the program that comes with Duet is not there; build all, or name one with -m", path);
  return path;
}

std::string with_commas(uint64_t number) {
  std::string digits = std::to_string(number), text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

}  // namespace duet::runner
