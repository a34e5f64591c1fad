#include "tokenizer/text.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>

namespace duet::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct Decoded {
  UChar32 character;  // < 0: ill-formed
  size_t bytes;       // consumed, >= 1
};

// REQUIRES: position < text.size().
Decoded decode_at(std::string_view text, size_t position) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data()) + position;
  // A character has at most 4 bytes; with 4 at hand the macro never looks further.
  int32_t length = static_cast<int32_t>(std::min<size_t>(4, text.size() - position));
  int32_t next = 0;
  UChar32 character = 0;
  U8_NEXT(bytes, next, length, character);
  return {character, static_cast<size_t>(next)};
}

size_t valid_prefix_bytes(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (static_cast<unsigned char>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    Decoded decoded = decode_at(text, position);
    if (decoded.character < 0) break;
    position += decoded.bytes;
  }
  return position;
}

// Python's str.isspace(): bidirectional type WS, B or S, or category Zs.
bool is_python_space(UChar32 c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) { return valid_prefix_bytes(bytes) == bytes.size(); }

SanitizedText sanitize_utf8(std::string bytes) {
  size_t position = valid_prefix_bytes(bytes);
  if (position == bytes.size()) return {std::move(bytes), 0};

  std::string_view rest(bytes);
  SanitizedText out;
  out.text.reserve(bytes.size() + 16);
  while (true) {
    size_t valid = valid_prefix_bytes(rest);
    out.text.append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) return out;
    rest.remove_prefix(decode_at(rest, 0).bytes);
    out.text.append(kReplacement);
    ++out.replaced;
  }
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    Decoded first = decode_at(text, 0);
    if (!is_python_space(first.character)) break;
    text.remove_prefix(first.bytes);
  }
  while (!text.empty()) {
    size_t last = code_point_boundary(text, text.size() - 1);
    if (!is_python_space(decode_at(text, last).character)) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

size_t code_point_boundary(std::string_view text, size_t position) {
  if (position >= text.size()) return text.size();
  size_t start = position;
  while (start > 0 && position - start < 3 && U8_IS_TRAIL(static_cast<uint8_t>(text[start]))) --start;
  // Inside a well-formed character: its start. Otherwise the byte stands for itself.
  return start + code_point_bytes(text, start) > position ? start : position;
}

size_t code_point_bytes(std::string_view text, size_t position) { return decode_at(text, position).bytes; }

CharacterClass classify(std::string_view text, size_t position) {
  UChar32 c = decode_at(text, position).character;
  if (c < 0) return CharacterClass::kOther;
  if (u_isUWhiteSpace(c)) return CharacterClass::kWhiteSpace;
  if (u_ispunct(c)) return CharacterClass::kPunctuation;
  return u_isalnum(c) ? CharacterClass::kAlphanumeric : CharacterClass::kOther;
}

}  // namespace duet::tokenizer
