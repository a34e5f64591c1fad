// Sentences of a text, by ICU's rules (Unicode Standard Annex 29) with its per-language lists of
// abbreviations.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace duet::tokenizer {

// Pieces that cover `text` exactly, in order: each a sentence with the white space after it. None is empty,
// and none is white space only unless the whole text is. `locale` is a language tag such as "en" or "pt_BR";
// an empty or unknown one means the rules of no language in particular. Thread-safe. A text of 2 GiB or more
// is one piece.
std::vector<std::string_view> split_sentences(std::string_view text, const std::string& locale);

}  // namespace duet::tokenizer
