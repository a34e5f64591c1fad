#include "tokenizer/tokenizer.h"

#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

constexpr std::string_view kMetaSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <class T>
Result<T> naming(const char* what, Result<T> result) {
  if (!result) return failure(result.error().code, "{}: {}", what, result.error().message);
  return result;
}

std::string replace_meta_spaces(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    size_t at = text.find(kMetaSpace);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += ' ';
    text.remove_prefix(at + kMetaSpace.size());
  }
}

bool is_special_name(std::string_view piece) {
  return piece == Tokenizer::kEndOfSentence || piece == Tokenizer::kUnknown || piece == Tokenizer::kPadding;
}

}  // namespace

LanguageToken split_language_token(std::string_view text) {
  if (!text.starts_with(">>")) return {{}, text};
  size_t end = text.find("<<");
  if (end == std::string_view::npos) return {{}, text};
  return {text.substr(0, end + 2), text.substr(end + 2)};
}

Result<Tokenizer::SpecialIds> Tokenizer::find_special_ids(const Vocabulary& vocabulary, const char* name) {
  auto end_of_sentence = vocabulary.id(kEndOfSentence);
  auto unknown = vocabulary.id(kUnknown);
  if (!end_of_sentence || !unknown)
    return failure(ErrorCode::kBadInput, "{} of {} pieces: no entry '{}'", name, vocabulary.size(),
                   end_of_sentence ? kUnknown : kEndOfSentence);
  SpecialIds ids;
  ids.end_of_sentence = static_cast<int32_t>(*end_of_sentence);
  ids.unknown = static_cast<int32_t>(*unknown);
  if (auto padding = vocabulary.id(kPadding)) ids.padding = static_cast<int32_t>(*padding);
  return ids;
}

Result<Tokenizer> Tokenizer::create(const TokenizerBlobs& blobs) {
  DUET_ASSIGN(Vocabulary source_vocabulary,
              naming("source vocabulary", Vocabulary::open(blobs.source_vocabulary)));
  std::optional<Vocabulary> target_vocabulary;
  if (!blobs.target_vocabulary.empty()) {
    DUET_ASSIGN(target_vocabulary, naming("target vocabulary", Vocabulary::open(blobs.target_vocabulary)));
  }
  DUET_ASSIGN(Subwords source, naming("source.spm", Subwords::create(as_text(blobs.source_spm))));
  DUET_ASSIGN(auto target, naming("target.spm", DeferredSubwords::create(as_text(blobs.target_spm))));
  Tokenizer tokenizer(std::move(source), std::move(target), source_vocabulary, target_vocabulary);
  DUET_ASSIGN(tokenizer.source_special_, find_special_ids(tokenizer.source_vocabulary_, "source vocabulary"));
  DUET_ASSIGN(tokenizer.target_special_,
              find_special_ids(tokenizer.target_vocabulary(), "target vocabulary"));
  return tokenizer;
}

// REQUIRES: piece is not a special name.
int32_t Tokenizer::lookup(const Side& side, std::string_view piece) {
  auto id = side.vocabulary.id(piece);
  return id ? static_cast<int32_t>(*id) : side.special.unknown;
}

void Tokenizer::append_piece(const Side& side, std::string_view piece, ByteRange range, Encoding& out) {
  if (!is_special_name(piece)) {
    out.ids.push_back(lookup(side, piece));
    out.ranges.push_back(range);
    return;
  }
  // The special names are ASCII: a byte is a character, and its range is exact where the text says the same.
  const bool same_length = range.end - range.begin == piece.size();
  for (uint32_t i = 0; i < piece.size(); ++i) {
    out.ids.push_back(lookup(side, piece.substr(i, 1)));
    out.ranges.push_back(same_length ? ByteRange{range.begin + i, range.begin + i + 1} : range);
  }
}

// `start`: where `text` begins in the text that the ranges are for.
Status Tokenizer::append_text(const Side& side, std::string_view text, size_t start, Encoding& out) {
  DUET_ASSIGN(Subwords::Pieces pieces, side.subwords.encode(text));
  out.ids.reserve(pieces.texts.size() + 2);
  out.ranges.reserve(pieces.texts.size() + 2);
  const auto base = static_cast<uint32_t>(start);
  for (size_t i = 0; i < pieces.texts.size(); ++i) {
    ByteRange range = pieces.ranges[i];
    append_piece(side, pieces.texts[i], {base + range.begin, base + range.end}, out);
  }
  const auto end = static_cast<uint32_t>(start + text.size());
  out.ids.push_back(side.special.end_of_sentence);
  out.ranges.push_back({end, end});
  return {};
}

Result<Encoding> Tokenizer::encode_side(const Side& side, std::string_view text,
                                        std::optional<std::string_view> language_token) {
  const LanguageToken split =
      language_token ? LanguageToken{*language_token, text} : split_language_token(text);
  const size_t start = text.size() - split.rest.size();
  Encoding out;
  if (!split.token.empty()) {
    out.ids.push_back(is_special_name(split.token) ? side.special.unknown : lookup(side, split.token));
    out.ranges.push_back({0, static_cast<uint32_t>(start)});
  }
  DUET_TRY(append_text(side, split.rest, start, out));
  return out;
}

Result<Encoding> Tokenizer::encode(std::string_view text,
                                   std::optional<std::string_view> language_token) const {
  return encode_side({source_, source_vocabulary_, source_special_}, text, language_token);
}

Result<Encoding> Tokenizer::encode_target(std::string_view text,
                                          std::optional<std::string_view> language_token) const {
  DUET_ASSIGN(const Subwords* target, naming("target.spm", target_->get()));
  return encode_side({*target, target_vocabulary(), target_special_}, text, language_token);
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids) const {
  std::vector<std::string_view> pieces;
  pieces.reserve(ids.size());
  for (int32_t id : ids) {
    if (id < 0 || static_cast<uint32_t>(id) >= target_size())
      return failure(ErrorCode::kUsage, "token id {} to decode, expected 0 to {}", id, target_size() - 1);
    if (!target_special_.contains(id)) pieces.push_back(target_piece(id));
  }
  const Subwords* joiner = &source_;
  if (target_vocabulary_) {
    DUET_ASSIGN(joiner, naming("target.spm", target_->get()));
  }
  DUET_ASSIGN(std::string text, joiner->decode(pieces));
  text = replace_meta_spaces(text);
  std::string_view stripped = strip(text);
  return stripped.size() == text.size() ? std::move(text) : std::string(stripped);
}

}  // namespace duet::tokenizer
