// What the commands that report share: aligned tables, text made printable, and results on standard output.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"

namespace duet::runner {

// A table for people: a heading, then rows, every column as wide as its widest cell, two spaces apart.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // REQUIRES: as many cells as columns. Text from a file is made printable first.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string text(std::string_view indent = "") const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Control characters as \xNN: a name in a file must not command a terminal or break a table.
std::string printable(std::string_view text);

// Writes the whole text to standard output. Errors: kIo, kClosedPipe.
Status print(std::string_view text);
// Indented, with a final line feed; bytes that are not UTF-8 (of a path) become U+FFFD.
Status print_json(const nlohmann::ordered_json& json);

}  // namespace duet::runner
