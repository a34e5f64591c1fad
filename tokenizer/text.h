// Text work on UTF-8 bytes (ICU's tables): what stands between bytes from outside and the tokenizer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace duet::tokenizer {

bool is_valid_utf8(std::string_view bytes);

struct SanitizedText {
  std::string text;     // valid UTF-8
  size_t replaced = 0;  // ill-formed subsequences that became U+FFFD
};

// Every maximal ill-formed subsequence becomes one U+FFFD, as the W3C and Unicode (chapter 3.9, U+FFFD
// substitution) have it. Valid text is moved through, not copied. NUL is a character like any other.
SanitizedText sanitize_utf8(std::string bytes);

// Both ends without the characters that Python's str.isspace() knows.
std::string_view strip(std::string_view text);

// The largest code-point boundary of `text` that is not beyond `position`; in ill-formed text at most 3 bytes
// before it.
size_t code_point_boundary(std::string_view text, size_t position);

// The bytes of the character at `position` < text.size(), at least 1.
size_t code_point_bytes(std::string_view text, size_t position);

// What a cut may rely on. White space is Unicode's White_Space, punctuation the general categories P*.
enum class CharacterClass { kOther, kAlphanumeric, kWhiteSpace, kPunctuation };
CharacterClass classify(std::string_view text, size_t position);

}  // namespace duet::tokenizer
