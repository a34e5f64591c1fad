#include "runner/suggest.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

namespace duet::runner {
namespace {

// Optimal string alignment distance (Damerau 1964, without repeated edits of one substring).
size_t edits(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::string without_dashes(const std::string& word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

// An option as a user would name it: "--slots", "-h".
std::string name_of(const CLI::Option& option) {
  return option.get_lnames().empty() ? option.get_name() : "--" + option.get_lnames()[0];
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

const CLI::Option* find_option(const CLI::App& app, const std::string& name) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& known : name.starts_with("--") ? option->get_lnames() : option->get_snames())
      if (without_dashes(name) == known) return option;
  return nullptr;
}

bool takes_texts(const CLI::App& app) {
  auto options = app.get_options();
  return std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->get_positional() && option->get_items_expected_max() > 1;
  });
}

const CLI::App* find_command(const CLI::App& app, int argc, const char* const* argv) {
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (argc > 1 && command->get_name() == argv[1]) return command;
  return nullptr;
}

// What the words behind a command say, in the order that CLI11 reads them.
struct Words {
  std::string unknown_option;  // the first
  const CLI::Option* lacks_value = nullptr;
  std::map<const CLI::Option*, int> counts;
};

Words read_words(const CLI::App& command, int argc, const char* const* argv) {
  Words words;
  for (int i = 2; i < argc; ++i) {
    std::string word = argv[i];
    if (word == "--") break;
    if (word.size() < 2 || word[0] != '-' || word[1] == ' ') continue;
    bool is_long = word[1] == '-';
    if (is_long && (word.size() < 3 || word[2] == '-' || word[2] == ' ')) continue;
    size_t last = is_long ? 1 : word.size() - 1;
    for (size_t j = 1; j <= last; ++j) {
      size_t equals = word.find('=');
      std::string name = is_long ? word.substr(0, equals) : std::string("-") + word[j];
      const CLI::Option* option = find_option(command, name);
      if (!option) {
        // "-slots" is one word to the person who typed it.
        if (words.unknown_option.empty())
          words.unknown_option = is_long ? name : j == 1 ? word.substr(0, equals) : name;
        break;
      }
      ++words.counts[option];
      if (!takes_value(*option)) continue;
      bool attached = is_long ? equals != std::string::npos : j < last;
      if (!attached && i + 1 >= argc) words.lacks_value = option;
      if (!attached) ++i;
      break;
    }
  }
  return words;
}

std::string unknown_option(const CLI::App& command, const std::string& word) {
  std::string meant = nearest(word, option_names(command));
  std::string text = "unknown option " + word;
  if (!meant.empty()) return text + ", did you mean " + meant + "?";
  if (takes_texts(command)) text += " (text that begins with a dash goes behind --)";
  return text;
}

std::string explain_first_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) commands.push_back(command->get_name());
  const std::string help = "; `duet --help` lists the commands";
  if (!word.starts_with("-")) {
    std::string meant = nearest(word, commands);
    return "unknown command \"" + word + "\"" + (meant.empty() ? "" : ", did you mean \"" + meant + "\"?") +
           help;
  }
  std::string name = word.substr(0, word.find('='));
  for (const CLI::App* command : app.get_subcommands(nullptr))
    if (find_option(*command, name))
      return name + " belongs behind a command: duet " + command->get_name() + " " + name + " ..." + help;
  auto names = option_names(app);
  for (const std::string& command : commands) names.push_back("--" + command);
  std::string meant = nearest(name, names);
  // "--translate" is a command to which somebody gave dashes.
  if (std::find(commands.begin(), commands.end(), without_dashes(meant)) != commands.end())
    meant = without_dashes(meant);
  return "unknown option " + name + (meant.empty() ? "" : ", did you mean " + meant + "?") + help;
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  const std::string typed = without_dashes(word);
  if (typed.empty() || typed.size() > 64) return "";
  std::string best;
  size_t least = std::max<size_t>(2, typed.size() / 3 + 1);  // as many edits make another word
  if (typed.size() < 3) least = 2;
  for (const std::string& candidate : candidates) {
    size_t count = edits(typed, without_dashes(candidate));
    if (count < least && count < typed.size()) {
      least = count;
      best = candidate;
    }
  }
  if (!best.empty() || typed.size() < 3) return best;
  auto only = [&](auto&& fits) {
    auto found = std::find_if(candidates.begin(), candidates.end(), fits);
    bool once = found != candidates.end() &&
                std::find_if(std::next(found), candidates.end(), fits) == candidates.end();
    return once ? *found : std::string();
  };
  best = only([&](const std::string& c) {
    return without_dashes(c).starts_with(typed) || typed.starts_with(without_dashes(c));
  });
  return best.empty() ? only([&](const std::string& c) { return c.ends_with(typed); }) : best;
}

std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                const char* const* argv) {
  const CLI::App* command = find_command(app, argc, argv);
  if (!command) return explain_first_word(app, argc > 1 ? argv[1] : "");
  const std::string help = "; see `duet " + command->get_name() + " --help`";
  Words words = read_words(*command, argc, argv);
  if (!words.unknown_option.empty()) return unknown_option(*command, words.unknown_option) + help;
  if (words.lacks_value)
    return name_of(*words.lacks_value) + " needs a value: " + name_of(*words.lacks_value) + " " +
           words.lacks_value->get_type_name() + help;
  for (const auto& [option, count] : words.counts)
    if (takes_value(*option) && count > option->get_items_expected_max() &&
        option->get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll)
      return name_of(*option) + " is given " + std::to_string(count) + " times, expected once" + help;
  std::string what = error.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  for (std::string_view wordy :
       {"The following argument was not expected:", "The following arguments were not expected:"})
    if (what.starts_with(wordy)) what = "unexpected argument" + what.substr(wordy.size());
  return command->get_name() + ": " + what + help;
}

namespace {

// "--slots=", "-m=x" and "--json=3", which CLI11 reads as "--slots NEXT", "-m '=x'" and "--json".
std::string explain_equals_sign(const CLI::App& command, const std::string& word, const std::string& name) {
  if (!word.starts_with("-") || name.size() == word.size()) return "";
  const CLI::Option* option =
      name.size() == 2 || name.starts_with("--") ? find_option(command, name) : nullptr;
  if (!option) return "";
  if (!takes_value(*option))
    return option->get_type_name().empty() ? name + " takes no value: write " + name : "";
  if (name.size() == 2) return "unexpected = in " + word + ": write " + name + " " + option->get_type_name();
  return name.size() + 1 == word.size() ? name + " needs a value: " + name + "=" + option->get_type_name()
                                        : "";
}

}  // namespace

std::string explain_doubtful_word(const CLI::App& app, int argc, const char* const* argv) {
  const CLI::App* command = find_command(app, argc, argv);
  if (!command) return "";
  const std::string help = "; see `duet " + command->get_name() + " --help`";
  for (int i = 2; i < argc; ++i) {
    std::string word = argv[i], name = word.substr(0, word.find('='));
    if (word == "--") return "";
    if (std::string problem = explain_equals_sign(*command, word, name); !problem.empty())
      return problem + help;
    if (name.find(' ') != std::string::npos) continue;
    bool dashes = name.starts_with("---");
    for (std::string_view dash : {"\u2012", "\u2013", "\u2014", "\u2015", "\u2212"})
      if (name.starts_with(dash)) {
        dashes = true;
        while (name.starts_with(dash)) name.erase(0, dash.size());
      }
    name = without_dashes(name);
    if (!dashes || name.size() < 2 || !std::isalpha(static_cast<unsigned char>(name[0]))) continue;
    std::string meant = nearest(name, option_names(*command));
    if (!meant.empty())
      return "\"" + word + "\" looks like an option, did you mean " + meant +
             "? (as text it goes behind --)" + help;
  }
  return "";
}

}  // namespace duet::runner
