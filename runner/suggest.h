// Messages for mistyped commands and options, with the nearest one that exists.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace duet::runner {

// The candidate with the fewest edits to `word` (insert, delete, replace, swap neighbours), if few enough,
// else the only one that begins with `word` or ends with it; else "". Leading dashes do not count.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// One line: what is wrong with the command line, what was meant perhaps, and where help is.
std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc,
                                const char* const* argv);

// A word that CLI11 would take for something else than a person: "---slots" or one with a word processor's
// long dash (for text), "--slots=" (for the next word being the value), "-m=x", "--json=3". The line to show,
// or "".
std::string explain_doubtful_word(const CLI::App& app, int argc, const char* const* argv);

}  // namespace duet::runner
