// Text of a user: sanitized, split into sentences, cut to a limit, encoded; everything must cover the text.
#include "memory/error.h"
#include "tests/fuzz/fuzz.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/cutter.h"
#include "tokenizer/segmenter.h"
#include "tokenizer/text.h"

using namespace duet;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto loaded = tokenizer::load_golden("small-b");
  const tokenizer::Tokenizer& tokenizer = *loaded.tokenizer;
  if (size > 20'000) return 0;
  auto text = tokenizer::sanitize_utf8(std::string(fuzz::text_of(data, size))).text;
  DUET_CHECK(tokenizer::sanitize_utf8(text).replaced == 0);
  size_t covered = 0;
  for (std::string_view sentence : tokenizer::split_sentences(text, "en")) {
    covered += sentence.size();
    auto parts = tokenizer::cut_to_limit(tokenizer, sentence, 5);
    if (!parts) continue;  // a character of more than four tokens
    size_t part_bytes = 0;
    for (std::string_view part : *parts) {
      part_bytes += part.size();
      auto encoding = tokenizer.encode(part, "");
      DUET_CHECK(encoding && encoding->ids.size() <= 5);
    }
    DUET_CHECK(part_bytes == sentence.size());
  }
  DUET_CHECK(covered == text.size());
  if (auto encoding = tokenizer.encode(text)) {
    std::vector<int32_t> ids;
    for (int32_t id : encoding->ids) ids.push_back(id % static_cast<int32_t>(tokenizer.target_size()));
    DUET_CHECK(tokenizer.decode(ids).has_value());
  }
  return 0;
}
