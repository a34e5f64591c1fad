// What must hold for a SentencePiece model (a protobuf, `ModelProto`) before the library may see it. The
// library trusts the double-array trie of a model's character map and the sizes of some of its own stack
// arrays; a hostile model makes it read out of bounds, recurse without end or hang. Checked here, in time
// linear in the blob:
//   1. The fields that count parse, and the singular ones occur once, so that both readers see the same
//   values.
//   2. Pieces: not empty, at most 1024 bytes, UTF-8 without NUL, finite score, one <unk>; at most 64
//   user-defined
//      symbols are prefixes of one another (the library keeps 64 matches).
//   3. Character maps: the trie lies inside its blob; no transition leaves it; no walk through it repeats a
//   state or
//      meets more than 32 values (the library keeps 32 matches); every value is the offset of a
//      NUL-terminated replacement of at most 256 bytes.
//   4. Self-test samples, which the library runs at load, are small.
#pragma once

#include <cstdint>
#include <string_view>

#include "memory/error.h"

namespace duet::tokenizer {

struct SentencePieceSummary {
  uint32_t pieces = 0;
};

// Errors: kBadInput. The message does not name the file: the caller does.
Result<SentencePieceSummary> check_sentencepiece(std::string_view model);

// Point 3 alone: u32 trie bytes, trie, replacements.
Status check_character_map(std::string_view map);

}  // namespace duet::tokenizer
