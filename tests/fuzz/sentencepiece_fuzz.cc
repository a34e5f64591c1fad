// A SentencePiece model: checked, and what passes is given to the library and used.
#include "tests/fuzz/fuzz.h"
#include "tokenizer/sentencepiece_check.h"
#include "tokenizer/subwords.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view model = duet::fuzz::text_of(data, size);
  if (!duet::tokenizer::check_sentencepiece(model)) return 0;
  auto subwords = duet::tokenizer::Subwords::create(model);
  if (!subwords) return 0;
  for (std::string_view text :
       {"Hello world", " a\u0301 \u00bd \ufb01 \u2581x\u3000 ", "\U0001f600 1,000.5"}) {
    auto pieces = subwords->encode(text);
    if (!pieces) continue;
    std::vector<std::string_view> texts(pieces->texts.begin(), pieces->texts.end());
    (void)subwords->decode(texts);
  }
  return 0;
}
