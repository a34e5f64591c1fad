#include "runner/command_line.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "memory/processors.h"
#include "model/marian_builder.h"
#include "runner/report.h"
#include "runner/suggest.h"

namespace duet::runner {
namespace {

constexpr size_t kHelpColumns = 80, kNameColumns = 28;

// `text` in lines that fit beside `indent` columns, each but the first indented.
std::string wrapped(const std::string& text, size_t indent) {
  std::string result;
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(' ', at), text.size());
    std::string word = text.substr(at, end - at);
    if (column > indent && column + 1 + word.size() > kHelpColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (column > indent) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    at = end + 1;
  }
  return result;
}

std::string beside(const std::string& name, const std::string& description) {
  std::string line = "  " + name;
  line += line.size() + 1 < kNameColumns ? std::string(kNameColumns - line.size(), ' ')
                                         : "\n" + std::string(kNameColumns, ' ');
  return line + wrapped(description, kNameColumns) + "\n";
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    std::string name = positional ? option->get_name(true) : option->get_name(false, true);
    name = name.substr(0, name.find('{'));  // "--stream{text}": a flag that may have a value
    if (!positional && option->get_items_expected_max() == 0 && !option->get_type_name().empty())
      name += option->get_type_name();
    if (!positional && option->get_items_expected_max() > 0) name += " " + option->get_type_name();
    std::string description = option->get_description();
    if (option->get_required()) description += " (required)";
    if (option->get_items_expected_max() > 0 && !option->get_default_str().empty())
      description += " [" + option->get_default_str() + "]";
    return beside(name, description);
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = Formatter::make_help(app, std::move(name), mode);
    for (size_t at; (at = text.find("\n\n\n")) != std::string::npos;) text.erase(at, 1);
    return text;
  }
  std::string make_subcommand(const CLI::App* command) const override {
    std::string description = command->get_description();
    return beside(command->get_name(), description.substr(0, description.find('\n')));
  }
};

}  // namespace

namespace {
constexpr char kShield = '\x02';
bool needs_shield(std::string_view word) { return word.starts_with('[') || word.starts_with(kShield); }
}  // namespace

std::vector<std::string> shield_brackets(CLI::App& app, int argc, char** argv) {
  for (CLI::App* command : app.get_subcommands(nullptr))
    for (CLI::Option* option : command->get_options())
      if (option->get_items_expected_max() > 0)
        option->transform(CLI::Validator(
            [](std::string& value) {
              if (value.starts_with(kShield)) value.erase(0, 1);
              return std::string();
            },
            ""));
  std::vector<std::string> words(argv + 1, argv + argc);
  for (std::string& word : words)
    if (needs_shield(word)) word.insert(word.begin(), kShield);
  return words;
}

std::shared_ptr<CLI::Formatter> help_formatter() { return std::make_shared<HelpFormatter>(); }

CLI::Validator one_of(std::vector<std::string> choices) {
  auto check = [choices](const std::string& value) -> std::string {
    if (std::find(choices.begin(), choices.end(), value) != choices.end()) return "";
    std::string list;
    for (size_t i = 0; i < choices.size(); ++i)
      list += (i == 0 ? "" : i + 1 == choices.size() ? " or " : ", ") + choices[i];
    std::string meant = nearest(value, choices);
    return fmt::format("\"{}\", expected {}{}", value, list,
                       meant.empty() ? "" : "; did you mean " + meant + "?");
  };
  return CLI::Validator(check, "");
}

CLI::Validator whole_number() {
  auto check = [](const std::string& value) -> std::string {
    int32_t number = 0;
    auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem == std::errc::result_out_of_range) return fmt::format("{} is far too large", value);
    if (problem != std::errc() || end != value.data() + value.size())
      return fmt::format("\"{}\", expected a whole number", value);
    return "";
  };
  return CLI::Validator(check, "");
}

CLI::Validator seed_number() {
  auto check = [](const std::string& value) -> std::string {
    uint64_t number = 0;
    auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem == std::errc() && end == value.data() + value.size()) return "";
    return fmt::format("\"{}\", expected a whole number from 0 to {}", value, UINT64_MAX);
  };
  return CLI::Validator(check, "");
}

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& value) -> std::string { return value.empty() ? "the name is empty" : ""; }, "");
}

std::string with_option_names(std::string message) {
  for (std::string name :
       {model::kSlots, model::kMaxSourceTokens, model::kMaxTargetTokens, model::kBatchTokens, "threads"}) {
    if (!message.starts_with(name + " is ")) continue;
    std::string option = "--" + name;
    std::replace(option.begin(), option.end(), '_', '-');
    return option + message.substr(name.size());
  }
  return message;
}

void ProgramOption::add_to(CLI::App& command) {
  command
      .add_option("-m,--program,--model,PROGRAM", path,
                  "Program made by `duet convert` [the English-French one of Duet]")
      ->type_name("PROGRAM")
      ->check(not_empty());
}

Result<std::shared_ptr<const model::Program>> ProgramOption::open(model::LoadMode mode) const {
  DUET_ASSIGN(std::string found, find_program(path));
  return model::Program::open(found, mode);
}

void LogOptions::add_to(CLI::App& command) {
  command.add_flag("-q,--quiet", quiet, "No log, no warnings, no progress: errors only");
  command.add_option("--log-level", level, "debug, info, warning, error or off")
      ->check(one_of({"debug", "info", "warning", "error", "off"}))
      ->type_name("LEVEL")
      ->capture_default_str();
}

void LogOptions::apply() const {
  using memory::LogLevel;
  LogLevel chosen = level == "debug"     ? LogLevel::kDebug
                    : level == "info"    ? LogLevel::kInfo
                    : level == "warning" ? LogLevel::kWarning
                    : level == "error"   ? LogLevel::kError
                                         : LogLevel::kOff;
  memory::set_log_level(quiet ? std::max(chosen, LogLevel::kError) : chosen);
}

void LoadOptions::add_to(CLI::App& command) {
  command
      .add_option(
          "--load", how,
          "How the program is held. mmap: pages come when they are used; mlock: all at once, and they stay "
          "in memory; read: a copy, so that the file may change or go")
      ->type_name("mmap|mlock|read")
      ->check(one_of({"mmap", "mlock", "read"}))
      ->capture_default_str();
}

model::LoadMode LoadOptions::mode() const {
  return how == "mlock"  ? model::LoadMode::kMlock
         : how == "read" ? model::LoadMode::kRead
                         : model::LoadMode::kMmap;
}

void LimitOptions::add_to(CLI::App& command) {
  auto add = [&](const char* name, auto& value, const std::string& description) {
    command.add_option(name, value, description)
        ->group("Limits (memory is planned for them when the program is loaded)")
        ->check(whole_number())
        ->type_name("N");
  };
  add("--slots", slots, "Sentences decoded at once");
  add("--max-source-tokens", max_source_tokens,
      "Tokens of the longest source, </s> included; what is longer is cut");
  add("--max-target-tokens", max_target_tokens, "Tokens of the longest translation, </s> included");
  add("--batch-tokens", batch_tokens, "Source tokens encoded in one call");
  add("--threads", threads, fmt::format("Threads of a session [{}]", default_threads()));
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

void NamedLimitOptions::add_to(CLI::App& command) {
  command.add_option("--limit", limits, "A limit of the session; once for each limit")
      ->type_name("NAME=N")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command.add_option("--threads", threads, fmt::format("Threads of a session [{}]", default_threads()))
      ->check(whole_number())
      ->type_name("N");
}

Result<model::SessionOptions> NamedLimitOptions::session() const {
  model::SessionOptions options;
  options.threads = threads.value_or(default_threads());
  for (const std::string& text : limits) {
    size_t equals = text.find('=');
    std::string value = equals == std::string::npos ? "" : text.substr(equals + 1);
    int64_t number = 0;
    auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (value.empty() || problem != std::errc() || end != value.data() + value.size())
      return failure(ErrorCode::kUsage, "--limit {}: expected NAME=N, as in --limit slots=4",
                     printable(text));
    if (!options.limits.emplace(text.substr(0, equals), number).second)
      return failure(ErrorCode::kUsage, "--limit {}: the limit is given twice", printable(text));
  }
  return options;
}

Error with_limit_option(Error error) {
  if (error.code == ErrorCode::kUsage && !error.message.starts_with("threads is "))
    error.message = "--limit: " + printable(error.message);
  return error;
}

int default_threads() {
  return std::min(memory::available_processors(), 16);  // a translation model has too little work for more
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
    return failure(ErrorCode::kIo,
                   "{}: the program that comes with Duet is not there; build all, or name one with -m", path);
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
