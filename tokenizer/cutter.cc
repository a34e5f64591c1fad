#include "tokenizer/cutter.h"

#include <algorithm>

#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

constexpr size_t kWindowBytesPerToken = 8;
constexpr size_t kMinWindowBytes = 256;
constexpr size_t kMaxWindowGrowth = 16;

bool is(CharacterClass found, CharacterClass wanted) { return found == wanted; }

// The last good place in (0, limit], where text is cut in front of it; 0: there is none.
size_t last_good_place(std::string_view text, size_t limit) {
  size_t between_words = 0, inside_word = 0;
  bool visible = false;  // a part of white space only is no part
  CharacterClass before_last = CharacterClass::kWhiteSpace;
  for (size_t at = 0; at < limit;) {
    const CharacterClass last = classify(text, at);
    at += code_point_bytes(text, at);
    if (at > limit) break;
    visible |= !is(last, CharacterClass::kWhiteSpace);
    const CharacterClass next = at < text.size() ? classify(text, at) : CharacterClass::kWhiteSpace;
    // White space that follows stays with the part, as long as it is within the limit.
    const bool before_space = is(next, CharacterClass::kWhiteSpace) && at < limit;
    if (visible && !before_space) {
      if (is(last, CharacterClass::kWhiteSpace)) between_words = at;
      if (is(last, CharacterClass::kPunctuation)) {
        const bool enclosed =
            is(before_last, CharacterClass::kAlphanumeric) && is(next, CharacterClass::kAlphanumeric);
        (enclosed ? inside_word : between_words) = at;
      }
    }
    before_last = last;
  }
  return between_words > 0 ? between_words : inside_word;
}

size_t skip_white_space(std::string_view text, size_t at, size_t end) {
  while (at < end && is(classify(text, at), CharacterClass::kWhiteSpace)) at += code_point_bytes(text, at);
  return std::min(at, end);
}

class Cutter {
 public:
  Cutter(const Encoder& encoder, size_t max_tokens)
      : encoder_(encoder),
        max_tokens_(max_tokens),
        // The bounds keep a window within what is encoded at once, and the product within 64 bits.
        first_window_(std::clamp(std::min(max_tokens, Subwords::kMaxTextBytes) * kWindowBytesPerToken,
                                 kMinWindowBytes, Subwords::kMaxTextBytes)),
        max_window_(std::min(first_window_ * kMaxWindowGrowth, Subwords::kMaxTextBytes)) {}

  // The first part of `rest`. REQUIRES: rest is not empty.
  Result<size_t> part_bytes(std::string_view rest) const {
    for (size_t window = first_window_;; window *= 2) {
      window = std::min(window, max_window_);
      size_t end = code_point_boundary(rest, window);
      DUET_ASSIGN(Encoding encoding, encoder_(rest.substr(0, end)));
      const bool fits = encoding.ids.size() <= max_tokens_;
      if (fits && end == rest.size()) return end;
      if (fits && window < max_window_) continue;
      size_t limit = fits ? end : limit_of(rest, encoding);
      limit = skip_white_space(rest, limit, end);
      return fitting_cut(rest, place_before(rest, limit));
    }
  }

 private:
  // Where the text of the first tokens that fit ends.
  size_t limit_of(std::string_view text, const Encoding& encoding) const {
    const size_t excess = encoding.ids.size() - max_tokens_;
    const size_t last_that_fits = encoding.ids.size() - 1 - excess;  // the place of </s>
    size_t limit = last_that_fits == 0 ? 0 : encoding.ranges[last_that_fits - 1].end;
    return code_point_boundary(text, limit);
  }

  static size_t place_before(std::string_view text, size_t limit) {
    size_t place = last_good_place(text, limit);
    if (place == 0) place = limit;
    return place > 0 ? place : code_point_bytes(text, 0);
  }

  // Pieces depend on what follows them: a part may need more tokens alone than it did in its window. Shrinks
  // it.
  Result<size_t> fitting_cut(std::string_view text, size_t cut) const {
    for (int attempt = 0;; ++attempt) {
      DUET_ASSIGN(Encoding encoding, encoder_(text.substr(0, cut)));
      if (encoding.ids.size() <= max_tokens_) return cut;
      const size_t first = code_point_bytes(text, 0);
      if (cut <= first)
        return failure(ErrorCode::kUsage,
                       "the character '{}' alone needs {} tokens, the limit is {}: raise it",
                       text.substr(0, first), encoding.ids.size(), max_tokens_);
      size_t limit = std::min(limit_of(text, encoding), code_point_boundary(text, cut - 1));
      if (attempt >= 4) limit = std::min(limit, code_point_boundary(text, cut / 2));
      cut = place_before(text, limit);
    }
  }

  const Encoder& encoder_;
  size_t max_tokens_;
  size_t first_window_;
  size_t max_window_;
};

}  // namespace

Result<std::vector<std::string_view>> cut_to_limit(const Encoder& encoder, std::string_view text,
                                                   size_t max_tokens) {
  if (max_tokens < 2)
    return failure(ErrorCode::kUsage,
                   "a limit of {} tokens leaves no room for text and </s>, expected 2 or more", max_tokens);
  const Cutter cutter(encoder, max_tokens);
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    DUET_ASSIGN(size_t bytes, cutter.part_bytes(text));
    parts.push_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return parts;
}

Result<std::vector<std::string_view>> cut_to_limit(const Tokenizer& tokenizer, std::string_view text,
                                                   size_t max_tokens, std::string_view language_token) {
  return cut_to_limit([&](std::string_view part) { return tokenizer.encode(part, language_token); }, text,
                      max_tokens);
}

}  // namespace duet::tokenizer
