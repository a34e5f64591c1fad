// Messages for mistyped commands and options, with the nearest one that exists.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace duet::runner {

// The candidate with the fewest edits to `word` (insert, delete, replace, swap neighbours), if few enough; else "".
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);

// One line: what is wrong with the command line, what was meant perhaps, and where help is.
std::string explain_usage_error(const CLI::App& app, const CLI::ParseError& error, int argc, const char* const* argv);

}  // namespace duet::runner
