// Cuts a text that is longer than a model reads into parts that fit.
//
// For each part: encode a window (8 bytes a token at first, doubled while all of it fits, at most 16 times as
// much), find by the byte ranges where the limit falls, cut at the last good place before it, and check the
// part's own encoding. The work is linear in the text: a window is bounded and most of it is consumed by its
// part and the next.
//
// Good places, best first: after white space or after punctuation that is not between two letters or digits;
// after any punctuation; anywhere between two characters.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "tokenizer/tokenizer.h"

namespace duet::tokenizer {

// Parts that cover `text` exactly, in order; encode(part, language_token) gives each at most `max_tokens`
// ids, </s> and language token included. All of `text` is text: split a language token off first
// (split_language_token) and give it here, and to the encoding of every part. A part that holds nothing but
// white space occurs only if the whole text is that, or where more white space than the largest window stands
// in a row. Deterministic. Errors: kUsage when max_tokens is too small for a single character, or leaves no
// room for one.
Result<std::vector<std::string_view>> cut_to_limit(const Tokenizer& tokenizer, std::string_view text,
                                                   size_t max_tokens, std::string_view language_token = {});

// The same over any encoder whose ids come with byte ranges and end with one of no text.
using Encoder = std::function<Result<Encoding>(std::string_view)>;
Result<std::vector<std::string_view>> cut_to_limit(const Encoder& encoder, std::string_view text,
                                                   size_t max_tokens);

}  // namespace duet::tokenizer
