#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "fixture.h"

namespace duet::tokenizer {
namespace {

using Ids = std::vector<int32_t>;
using Pieces = std::vector<std::string>;

// small-a: "</s>" 0, "<unk>" 1, "<pad>" 694. Expected ids are transformers 5.23.0's, unless a test says
// otherwise.
class SmallTokenizer : public ::testing::Test {
 protected:
  Ids encode(std::string_view text) { return loaded_.tokenizer->encode(text).value().ids; }
  LoadedTokenizer loaded_ = load_golden("small-a");
};

// A model whose vocabulary has the language token ">>fra<<" as id 10.
LoadedTokenizer with_language_token() {
  auto files = golden_files("small-a");
  auto vocabulary = Vocabulary::open(files->blobs().source_vocabulary).value();
  Pieces pieces;
  for (uint32_t id = 0; id < vocabulary.size(); ++id) pieces.emplace_back(vocabulary.piece(id));
  pieces[10] = ">>fra<<";
  files->source_vocabulary = Vocabulary::serialize(pieces).value();
  return load(std::move(files));
}

TEST_F(SmallTokenizer, EmptyAndBlankTextsAreOnlyTheEndOfSentence) {
  for (const char* text : {"", " ", "\t\n ", "\xE2\x96\x81", "\xC2\xA0"})
    EXPECT_EQ(encode(text), Ids{0}) << text;
}

TEST_F(SmallTokenizer, UnknownPiecesBecomeUnk) {
  EXPECT_EQ(encode("☃ x"), (Ids{237, 1, 237, 213, 0}));
  EXPECT_EQ(encode("☃☃☃ x"), (Ids{237, 1, 237, 213, 0})) << "a run of unknown characters is one piece";
}

TEST_F(SmallTokenizer, NulIsACharacterThatCutsNothingOff) {
  using namespace std::string_view_literals;
  EXPECT_EQ(encode("a\0b"sv), (Ids{306, 1, 72, 0}));
  EXPECT_EQ(encode("\0a"sv).size(), 4u);
}

TEST_F(SmallTokenizer, SpecialNamesInATextAreText) {
  // The reference reads these as control symbols; Duet's ids are those of the pieces that SentencePiece
  // makes.
  EXPECT_EQ(source_pieces(*loaded_.tokenizer, encode("a </s> b")),
            (Pieces{"▁a", "▁", "<unk>", "s", "<unk>", "▁b", "</s>"}));
  EXPECT_EQ(source_pieces(*loaded_.tokenizer, encode("<pad>")),
            (Pieces{"▁", "<unk>", "p", "ad", "<unk>", "</s>"}));
  EXPECT_EQ(source_pieces(*loaded_.tokenizer, encode("x<unk>y")),
            (Pieces{"▁", "x", "<unk>", "un", "k", "<unk>", "y", "</s>"}));
}

TEST_F(SmallTokenizer, ALeadingLanguageTokenIsOneEntryAndTheRestIsText) {
  EXPECT_EQ(encode(">>fr<< hello"), (Ids{1, 431, 142, 156, 0}));
  EXPECT_EQ(encode(">>fr<<"), (Ids{1, 0}));
  EXPECT_EQ(encode(">>a\nb<<"), (Ids{1, 0})) << "a line end does not matter";
  EXPECT_EQ(encode(">>fr<< a >>b<< c"), (Ids{1, 306, 237, 1, 72, 1, 348, 0})) << "the first << ends it";
  EXPECT_EQ(encode(" >>fr<< hi"), (Ids{237, 1, 108, 178, 1, 423, 114, 0})) << "not at the start: text";
}

TEST_F(SmallTokenizer, IllFormedUtf8IsAnUnknownPiece) {
  EXPECT_EQ(encode("a\xFF"), (Ids{306, 1, 0}));
  EXPECT_EQ(encode("\xF0\x9F"), (Ids{237, 1, 0}));
  EXPECT_EQ(encode("a\xEF\xBF\xBD"), (Ids{306, 0}))
      << "a U+FFFD of the text itself is dropped by these models";
}

TEST_F(SmallTokenizer, ATextTooLongToEncodeAtOnceIsAnError) {
  auto result = loaded_.tokenizer->encode(std::string(Subwords::kMaxTextBytes + 1, 'a'));
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code, ErrorCode::kUsage);
}

TEST_F(SmallTokenizer, DecodeDropsSpecialIdsAndStrips) {
  const Tokenizer& tokenizer = *loaded_.tokenizer;
  const Ids words{306, 333, 7};  // ▁a ▁b .
  EXPECT_EQ(tokenizer.decode(words).value(), "a b.");
  EXPECT_EQ(tokenizer.decode(Ids{694, 306, 1, 333, 7, 0, 0}).value(), "a b.");
  EXPECT_EQ(tokenizer.decode(Ids{237, 237, 306, 237}).value(), "a");
  EXPECT_EQ(tokenizer.decode(Ids{}).value(), "");
}

TEST_F(SmallTokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  for (int32_t id : {-1, 695, INT32_MAX}) {
    auto text = loaded_.tokenizer->decode(Ids{id});
    ASSERT_FALSE(text.has_value());
    EXPECT_NE(text.error().message.find(std::to_string(id)), std::string::npos) << text.error().message;
  }
}

TEST_F(SmallTokenizer, RangesPointAtTheBytesOfEachPiece) {
  const std::string text = "a  ☃ you";
  const Encoding encoding = loaded_.tokenizer->encode(text).value();
  Pieces covered;
  for (const ByteRange& range : encoding.ranges)
    covered.push_back(text.substr(range.begin, range.end - range.begin));
  EXPECT_EQ(covered, (Pieces{"a", "  ", "☃", " you", ""}));
  EXPECT_EQ(loaded_.tokenizer->encode(">>fr<< a").value().ranges,
            (std::vector<ByteRange>{{0, 6}, {7, 8}, {8, 8}}));
}

TEST(Tokenizer, AKnownLanguageTokenIsItsVocabularyEntry) {
  LoadedTokenizer loaded = with_language_token();
  EXPECT_EQ(loaded.tokenizer->encode(">>fra<< hello").value().ids, (Ids{10, 431, 142, 156, 0}));
}

TEST(Tokenizer, LaterPartsTakeTheLanguageTokenOfTheText) {
  LoadedTokenizer loaded = with_language_token();
  const std::string text = ">>fra<< hello";
  const LanguageToken split = split_language_token(text);
  EXPECT_EQ(split.token, ">>fra<<");
  EXPECT_EQ(split.rest, " hello");
  EXPECT_EQ(loaded.tokenizer->encode(split.rest, split.token).value().ids,
            loaded.tokenizer->encode(text).value().ids);
  // With a token given, even an empty one, the text is all text.
  const Encoding all_text = loaded.tokenizer->encode(">>fr<< a", "").value();
  EXPECT_EQ(all_text.ids, loaded.tokenizer->encode(" >>fr<< a").value().ids);
}

TEST(Tokenizer, SeparateVocabulariesEncodeAndDecodeEachWithItsOwn) {
  LoadedTokenizer loaded = load_golden("small-b");
  const Tokenizer& tokenizer = *loaded.tokenizer;
  EXPECT_EQ(tokenizer.source_size(), 401u);
  EXPECT_EQ(tokenizer.encode("a </s>").value().ids.at(0), 161);
  const Encoding target = tokenizer.encode_target("Tous").value();
  EXPECT_EQ(tokenizer.decode(target.ids).value(), "Tous");
  EXPECT_NE(tokenizer.encode("Tous").value().ids, target.ids);
}

// As in the reference: a control piece of the model that joins the pieces is invisible, to the other it is
// text.
TEST(Tokenizer, PiecesAreJoinedBySourceSpmWhenTheVocabularyIsShared) {
  for (bool separate : {false, true}) {
    auto files = std::make_unique<TokenizerFiles>();
    SpmModel with_control;
    with_control.pieces.push_back({"<s>", 0, 3});
    files->source_spm = serialize(with_control);
    files->target_spm = serialize(SpmModel{});
    files->source_vocabulary = Vocabulary::serialize(Pieces{"</s>", "<unk>", "<s>"}).value();
    if (separate) files->target_vocabulary = files->source_vocabulary;
    LoadedTokenizer loaded = load(std::move(files));
    EXPECT_EQ(loaded.tokenizer->decode(Ids{2, 0}).value(), separate ? "<s>" : "");
  }
}

// A SentencePiece model may itself make a piece that is spelled like a special name.
class PieceSpelledLikeASpecialName : public ::testing::TestWithParam<SpmModel> {};

TEST_P(PieceSpelledLikeASpecialName, NeverBecomesASpecialId) {
  auto files = std::make_unique<TokenizerFiles>();
  files->source_spm = files->target_spm = serialize(GetParam());
  files->source_vocabulary =
      Vocabulary::serialize(std::vector<std::string>{"</s>", "<unk>", "▁", "<", "s", "<pad>"}).value();
  LoadedTokenizer loaded = load(std::move(files));
  EXPECT_EQ(loaded.tokenizer->encode("</s>").value().ids, (Ids{2, 3, 1, 4, 1, 0}));
  EXPECT_EQ(loaded.tokenizer->encode("</s>").value().ranges.at(2), (ByteRange{1, 2}));
  const Ids ids = loaded.tokenizer->encode("<pad></s><pad>").value().ids;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 5), 0);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 0), 1) << "the final </s> only";
}

INSTANTIATE_TEST_SUITE_P(UserDefined, PieceSpelledLikeASpecialName,
                         ::testing::Values(SpmModel{
                             .pieces = {{"<unk>", 0, 2}, {"▁", -3, 1}, {"</s>", 0, 4}, {"<pad>", 0, 4}},
                             .character_map = {},
                             .extra = {}}));
// With no ASCII pieces, the unknown characters of "</s>" are merged into one piece of that spelling.
INSTANTIATE_TEST_SUITE_P(MergedUnknown, PieceSpelledLikeASpecialName, ::testing::Values(SpmModel{}));

}  // namespace
}  // namespace duet::tokenizer
