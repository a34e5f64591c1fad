// Text <-> token ids of a translation model, as transformers 5.23.0's MarianTokenizer does it, with one
// difference: special names ("</s>", "<unk>", "<pad>") written in a text are text, never control symbols.
//
//   source text -> [language token] source.spm -> pieces -> source vocabulary -> ids, </s>
//   target ids -> target vocabulary -> pieces -> spm -> text
//
// 1. A piece that the vocabulary lacks is <unk>. A piece spelled like a special name is looked up character
// by
//    character: no special id but <unk> and the final </s> comes out of encode().
// 2. With a shared vocabulary the reference joins target pieces by source.spm, with separate ones by
// target.spm.
// 3. NUL is a character. Ill-formed UTF-8 does no harm here, but sanitize first (text.h) to keep byte ranges
// exact. Thread safety: const methods only; any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "tokenizer/subwords.h"
#include "tokenizer/vocabulary.h"

namespace duet::tokenizer {

// Sections of a program file (or a TokenizerFiles). The vocabularies are read in place and must outlive the
// tokenizer; the SentencePiece models are copied.
struct TokenizerBlobs {
  std::span<const std::byte> source_spm;
  std::span<const std::byte> target_spm;
  std::span<const std::byte> source_vocabulary;
  std::span<const std::byte> target_vocabulary;  // empty: the source vocabulary serves both sides
};

struct Encoding {
  std::vector<int32_t> ids;  // with the final </s>
  std::vector<ByteRange>
      ranges;  // of the text, one per id; </s> and a language token from outside the text are empty
};

struct LanguageToken {
  std::string_view token;  // ">>fra<<", or empty
  std::string_view rest;
};

// The reference's rule: a text that starts with ">>" and has "<<" anywhere after begins with a language
// token.
LanguageToken split_language_token(std::string_view text);

class Tokenizer {
 public:
  static constexpr std::string_view kEndOfSentence = "</s>";
  static constexpr std::string_view kUnknown = "<unk>";
  static constexpr std::string_view kPadding = "<pad>";

  // Errors: kBadInput, naming the blob.
  static Result<Tokenizer> create(const TokenizerBlobs& blobs);

  // Without `language_token`, a language token at the start of the text is one vocabulary entry, as in the
  // reference. With it, that token comes first (nothing if it is empty) and all of `text` is text: so are the
  // later sentences and parts of a text encoded whose beginning named the language. Errors: kUsage for a text
  // above Subwords::kMaxTextBytes.
  Result<Encoding> encode(std::string_view text,
                          std::optional<std::string_view> language_token = std::nullopt) const;

  // The same for a text of the target side, for scoring given translations: the reference's `text_target=`.
  Result<Encoding> encode_target(std::string_view text,
                                 std::optional<std::string_view> language_token = std::nullopt) const;

  // Special ids are dropped; white space at both ends is stripped. For a stream: decode the growing prefix
  // again. Errors: kUsage for an id outside the target vocabulary.
  Result<std::string> decode(std::span<const int32_t> ids) const;

  uint32_t source_size() const { return source_vocabulary_.size(); }
  uint32_t target_size() const { return target_vocabulary().size(); }
  // REQUIRES: 0 <= id < size of that side. The views live as long as the blobs.
  std::string_view source_piece(int32_t id) const {
    return source_vocabulary_.piece(static_cast<uint32_t>(id));
  }
  std::string_view target_piece(int32_t id) const {
    return target_vocabulary().piece(static_cast<uint32_t>(id));
  }
  const Vocabulary& source_vocabulary() const { return source_vocabulary_; }
  const Vocabulary& target_vocabulary() const {
    return target_vocabulary_ ? *target_vocabulary_ : source_vocabulary_;
  }

 private:
  struct SpecialIds {
    int32_t end_of_sentence = 0;
    int32_t unknown = 0;
    int32_t padding = -1;  // -1: the vocabulary has none
    bool contains(int32_t id) const { return id == end_of_sentence || id == unknown || id == padding; }
  };

  Tokenizer(Subwords source, std::unique_ptr<DeferredSubwords> target, Vocabulary source_vocabulary,
            std::optional<Vocabulary> target_vocabulary)
      : source_(std::move(source)),
        target_(std::move(target)),
        source_vocabulary_(source_vocabulary),
        target_vocabulary_(target_vocabulary) {}

  static Result<SpecialIds> find_special_ids(const Vocabulary& vocabulary, const char* name);
  // One side's subwords and vocabulary.
  struct Side {
    const Subwords& subwords;
    const Vocabulary& vocabulary;
    const SpecialIds& special;
  };
  static int32_t lookup(const Side& side, std::string_view piece);
  static void append_piece(const Side& side, std::string_view piece, ByteRange range, Encoding& out);
  static Status append_text(const Side& side, std::string_view text, size_t start, Encoding& out);
  static Result<Encoding> encode_side(const Side& side, std::string_view text,
                                      std::optional<std::string_view> language_token);

  // Constant after create.
  Subwords source_;
  std::unique_ptr<DeferredSubwords> target_;
  Vocabulary source_vocabulary_;
  std::optional<Vocabulary> target_vocabulary_;
  SpecialIds source_special_;
  SpecialIds target_special_;
};

}  // namespace duet::tokenizer
