#include "runner/report.h"

#include <algorithm>

#include "runner/text_output.h"

namespace duet::runner {
namespace {

// Characters of UTF-8 text; a terminal shows most of them one cell wide.
size_t width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string Table::text(std::string_view indent) const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(width(column.heading));
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string text;
  auto add_line = [&](auto cell) {
    std::string line(indent);
    for (size_t i = 0; i < columns_.size(); ++i) {
      std::string padding(widths[i] - width(cell(i)), ' ');
      line += columns_[i].align == Align::kRight ? padding + cell(i) : cell(i) + padding;
      line += "  ";
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line([&](size_t i) { return columns_[i].heading; });
  for (const auto& row : rows_) add_line([&](size_t i) { return row[i]; });
  return text;
}

std::string printable(std::string_view text) {
  std::string result;
  for (char c : text) {
    auto byte = static_cast<unsigned char>(c);
    result += byte < 0x20 || byte == 0x7F ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return result;
}

Status print(std::string_view text) {
  DUET_ASSIGN(auto output, TextOutput::open(""));
  DUET_TRY(output.write(text));
  return output.finish();
}

Status print_json(const nlohmann::ordered_json& json) {
  return print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace duet::runner
