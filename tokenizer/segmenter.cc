#include "tokenizer/segmenter.h"

#include <unicode/brkiter.h>
#include <unicode/locid.h>
#include <unicode/utext.h>

#include <limits>
#include <memory>

#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

struct CloseText {
  void operator()(UText* text) const { utext_close(text); }
};

icu::Locale parse_locale(const std::string& name) {
  constexpr size_t kMaxTagBytes = 35;  // RFC 5646's longest practical tag
  if (name.empty() || name.size() > kMaxTagBytes) return icu::Locale::getRoot();
  for (char c : name) {
    bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
    if (!plain) return icu::Locale::getRoot();
  }
  icu::Locale locale = icu::Locale::createFromName(name.c_str());
  if (locale.isBogus()) return icu::Locale::getRoot();
  // "ss=standard": no break after the language's usual abbreviations ("Mr.").
  UErrorCode status = U_ZERO_ERROR;
  locale.setKeywordValue("ss", "standard", status);
  return U_SUCCESS(status) ? locale : icu::Locale::getRoot();
}

std::unique_ptr<icu::BreakIterator> make_iterator(const std::string& locale) {
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::BreakIterator> iterator(
      icu::BreakIterator::createSentenceInstance(parse_locale(locale), status));
  return U_SUCCESS(status) ? std::move(iterator) : nullptr;
}

// An iterator is costly to make and not to be shared between threads: each thread keeps its last one.
icu::BreakIterator* iterator_for(const std::string& locale) {
  thread_local std::string made_for;
  thread_local std::unique_ptr<icu::BreakIterator> iterator;
  if (!iterator || made_for != locale) {
    iterator = make_iterator(locale);
    made_for = locale;
  }
  return iterator.get();
}

// French closes a quotation with a space before the mark ("« Oui. » dit-il"), where ICU breaks. The bytes at
// the start of `piece` that belong to the sentence before: such a mark with the white space after it.
size_t closing_quotation_bytes(std::string_view piece) {
  for (std::string_view mark : {"\xC2\xBB", "\xE2\x80\x9D"}) {  // » and ”
    if (!piece.starts_with(mark)) continue;
    size_t end = mark.size();
    while (end < piece.size() && classify(piece, end) == CharacterClass::kWhiteSpace)
      end += code_point_bytes(piece, end);
    return end > mark.size() || end == piece.size() ? end
                                                    : 0;  // at once before a word it opens one, as in German
  }
  return 0;
}

bool has_visible(std::string_view text) {
  for (size_t at = 0; at < text.size(); at += code_point_bytes(text, at)) {
    if (classify(text, at) != CharacterClass::kWhiteSpace) return true;
  }
  return false;
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text, const std::string& locale) {
  if (text.empty()) return {};
  const std::vector<std::string_view> whole{text};
  icu::BreakIterator* iterator = iterator_for(locale);
  if (!iterator || text.size() > std::numeric_limits<int32_t>::max()) return whole;
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<UText, CloseText> source(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  iterator->setText(source.get(), status);
  if (U_FAILURE(status)) return whole;

  std::vector<std::string_view> sentences;
  size_t begin = 0;
  for (int32_t next = iterator->next(); next != icu::BreakIterator::DONE; next = iterator->next()) {
    const auto end = static_cast<size_t>(next);
    if (end <= begin || end > text.size()) continue;
    std::string_view piece = text.substr(begin, end - begin);
    // White space ends the sentence before it, or opens the first one.
    size_t belongs_before = has_visible(piece) ? closing_quotation_bytes(piece) : piece.size();
    if (sentences.empty()) {
      if (belongs_before == piece.size()) continue;
      belongs_before = 0;
    }
    if (belongs_before > 0) {
      std::string_view& last = sentences.back();
      last = {last.data(), last.size() + belongs_before};
      piece.remove_prefix(belongs_before);
    }
    if (!piece.empty()) sentences.push_back(piece);
    begin = end;
  }
  if (begin < text.size()) {  // white space only, or what an ICU error left over
    sentences.push_back(text.substr(begin));
  }
  return sentences;
}

}  // namespace duet::tokenizer
