#include "runner/suggest.h"

#include <algorithm>

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
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
  std::string best;
  size_t least = word.size() / 3 + 2;  // more edits than that is another word
  for (const std::string& candidate : candidates) {
    size_t count = word.size() > 64 ? least : edits(word, candidate);
    if (count < least) {
      least = count;
      best = candidate;
    }
  }
  return best;
}

std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands(nullptr)) commands.push_back(command->get_name());
  const CLI::App* command = nullptr;
  for (const CLI::App* candidate : app.get_subcommands(nullptr))
    if (argc > 1 && candidate->get_name() == argv[1]) command = candidate;
  if (!command) {
    std::string word = argc > 1 ? argv[1] : "";
    if (word.starts_with("-")) return "unknown option " + word + "; `duet --help` lists the commands";
    std::string meant = nearest(word, commands);
    return "unknown command \"" + word + "\"" + (meant.empty() ? "" : ", did you mean \"" + meant + "\"?") +
           "; `duet --help` lists the commands";
  }
  std::string help = "; see `duet " + command->get_name() + " --help`";
  if (dynamic_cast<const CLI::ExtrasError*>(&error)) {
    auto names = option_names(*command);
    for (int i = 2; i < argc; ++i) {
      std::string word = argv[i];
      word = word.substr(0, word.find('='));
      if (!word.starts_with("--") || word == "--" || std::find(names.begin(), names.end(), word) != names.end()) continue;
      std::string meant = nearest(word, names);
      return "unknown option " + word + (meant.empty() ? "" : ", did you mean " + meant + "?") + help;
    }
  }
  std::string what = error.what();
  std::replace(what.begin(), what.end(), '\n', ' ');
  return command->get_name() + ": " + what + help;
}

}  // namespace duet::runner
