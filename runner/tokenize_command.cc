// duet tokenize: what the model gets for a text, and what text its tokens are. Line by line, like translate.
#include <charconv>

#include "memory/log.h"
#include "runner/command_line.h"
#include "runner/convert.h"
#include "runner/line_input.h"
#include "runner/report.h"
#include "runner/text_output.h"
#include "tokenizer/text.h"
#include "tokenizer/tokenizer.h"

namespace duet::runner {
namespace {

constexpr const char* kHelp =
    R"(Splits text into the tokens of a model: arguments (each a line) or standard input.

Every line of the input gives one line of output: pieces, separated by spaces
(the sign U+2581 stands for a space of the text). --ids gives numbers instead,
with the final </s>, as the model gets them. --decode goes the other way.)";

constexpr const char* kFooter = R"(Examples:
  duet tokenize "Good morning."
  echo "Good morning." | duet tokenize --ids
  echo "Bonjour le monde." | duet tokenize --target --ids | duet tokenize --decode)";

struct Options {
  std::vector<std::string> texts;
  std::string program;
  bool ids = false, decode = false, target = false;
  LogOptions log;
};

class TokenizeJob {
 public:
  TokenizeJob(const Options& options, const tokenizer::Tokenizer& tokenizer, LineInput input,
              TextOutput output)
      : options_(options), tokenizer_(tokenizer), input_(std::move(input)), output_(std::move(output)) {}

  Result<int> run() {
    Status status = copy_lines();
    Status flushed = output_.flush();  // what is ready is not lost
    DUET_TRY(status);
    DUET_TRY(flushed);
    if (interrupted()) return failure(ErrorCode::kInterrupted, "");
    DUET_TRY(output_.finish());
    return 0;
  }

 private:
  Status copy_lines() {
    while (!interrupted()) {
      DUET_ASSIGN(auto next, input_.next(false));
      if (next.kind == LineInput::Next::Kind::kNothingYet) {
        // A reader sees all lines so far before the next one comes.
        DUET_TRY(output_.flush());
        DUET_ASSIGN(next, input_.next(true));
      }
      if (next.kind == LineInput::Next::Kind::kEnd || interrupted()) break;
      if (next.kind == LineInput::Next::Kind::kNothingYet) continue;
      ++lines_;
      // A carriage return is part of the line's end, not of the text.
      if (next.line.ends_with('\r')) next.line.pop_back();
      DUET_ASSIGN(std::string text, options_.decode ? decode(next.line) : encode(std::move(next.line)));
      DUET_TRY(output_.write(text));
      if (next.ended_by_feed) DUET_TRY(output_.write("\n"));
    }
    return {};
  }

  Result<std::string> encode(std::string bytes) const {
    auto text = tokenizer::sanitize_utf8(std::move(bytes));
    if (text.replaced > 0)
      memory::log(memory::LogLevel::kWarning,
                  fmt::format("{}: line {}: {} invalid UTF-8 sequence{} replaced by U+FFFD", input_.name(),
                              lines_, text.replaced, text.replaced > 1 ? "s" : ""));
    auto encoding = options_.target ? tokenizer_.encode_target(text.text) : tokenizer_.encode(text.text);
    if (!encoding)
      return failure(ErrorCode::kBadInput, "{}: line {}: {}", input_.name(), lines_,
                     encoding.error().message);
    if (options_.ids) return fmt::format("{}", fmt::join(encoding->ids, " "));
    std::string pieces;
    for (size_t i = 0; i + 1 < encoding->ids.size(); ++i) {  // the last one is </s>
      if (i > 0) pieces += ' ';
      pieces += options_.target ? tokenizer_.target_piece(encoding->ids[i])
                                : tokenizer_.source_piece(encoding->ids[i]);
    }
    return pieces;
  }

  Result<std::string> decode(std::string_view line) const {
    constexpr std::string_view kBlanks = " \t";
    std::vector<int32_t> ids;
    while (true) {
      size_t start = line.find_first_not_of(kBlanks);
      if (start == std::string_view::npos) break;
      line.remove_prefix(start);
      std::string_view word = line.substr(0, line.find_first_of(kBlanks));
      line.remove_prefix(word.size());
      int32_t id = -1;
      auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || end != word.data() + word.size() || id < 0 ||
          static_cast<uint32_t>(id) >= tokenizer_.target_size())
        return failure(ErrorCode::kBadInput, "{}: line {}: token id \"{}\", expected a number from 0 to {}",
                       input_.name(), lines_, shortened(word), tokenizer_.target_size() - 1);
      ids.push_back(id);
    }
    return tokenizer_.decode(ids);
  }

  // For a message: a word of any length and any bytes.
  static std::string shortened(std::string_view word) {
    constexpr size_t kMostBytes = 40;
    std::string text =
        word.size() <= kMostBytes
            ? std::string(word)
            : std::string(word.substr(0, tokenizer::code_point_boundary(word, kMostBytes))) + "…";
    return printable(tokenizer::sanitize_utf8(std::move(text)).text);
  }

  const Options& options_;
  const tokenizer::Tokenizer& tokenizer_;
  LineInput input_;
  TextOutput output_;
  uint64_t lines_ = 0;
};

Result<int> run(const Options& options) {
  options.log.apply();
  install_interrupt_handler();
  ProgramOption program_option{options.program};
  DUET_ASSIGN(auto program, program_option.open());
  if (program->section(kSourceSpm).empty())
    return failure(ErrorCode::kBadInput, "{}: this program has no tokenizer (no section {})", program->path(),
                   kSourceSpm);
  auto tokenizer = tokenizer::Tokenizer::create({program->section(kSourceSpm), program->section(kTargetSpm),
                                                 program->section(kSourceVocabulary),
                                                 program->section(kTargetVocabulary)});
  if (!tokenizer)
    return failure(tokenizer.error().code, "{}: {}", program->path(), tokenizer.error().message);
  DUET_ASSIGN(auto input, options.texts.empty() ? LineInput::open("-")
                                                : Result<LineInput>(LineInput::of_arguments(options.texts)));
  DUET_ASSIGN(auto output, TextOutput::open(""));
  return TokenizeJob(options, *tokenizer, std::move(input), std::move(output)).run();
}

}  // namespace

void add_tokenize_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("tokenize", kHelp);
  command->footer(kFooter);
  command->add_option("TEXT", options->texts,
                      "Text to split (with --decode: ids), a line each; without it, standard input");
  command
      ->add_option("-m,--program,--model", options->program,
                   "Program made by `duet convert` [the English-French one of Duet]")
      ->type_name("PROGRAM")
      ->check(not_empty());
  CLI::Option* ids =
      command->add_flag("--ids", options->ids, "Numbers instead of pieces, with the final </s>");
  CLI::Option* target =
      command->add_flag("--target", options->target, "The text is a translation: use the target side");
  command
      ->add_flag("--decode", options->decode,
                 "Lines are ids of the target side, separated by spaces; gives their text")
      ->excludes(ids)
      ->excludes(target);
  options->log.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
