// SentencePiece trusts its models. These are built or bent so that it would read out of bounds, hang or die.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "fixture.h"
#include "tokenizer/sentencepiece_check.h"
#include "tokenizer/subwords.h"

namespace duet::tokenizer {
namespace {

// Whatever create() lets through must encode and decode without harm.
bool survives(const std::string& model) {
  auto subwords = Subwords::create(model);
  if (!subwords) return false;
  using namespace std::string_view_literals;
  for (std::string_view text :
       {"Hello ﬁne ﷺ world ½ ①②③ が ㍿"sv, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"sv, "\0\0 \0"sv,
        "\xFF\xE2\x80 \xF0\x9F"sv, ""sv, "…\u3000Ａ Ｂ"sv}) {
    auto pieces = subwords->encode(text);
    if (!pieces) continue;
    std::vector<std::string_view> views(pieces->texts.begin(), pieces->texts.end());
    (void)subwords->decode(views);
  }
  return true;
}

std::string error_of(const SpmModel& model) {
  auto subwords = Subwords::create(serialize(model));
  return subwords ? "none" : subwords.error().message;
}

// A trie of one block of 256 units, every unit unused, to be bent. The unit of a state has base = index ^
// offset.
struct Trie {
  std::vector<uint32_t> units;
  std::string replacements = std::string("\0x\0", 3);
  Trie() {
    for (uint32_t i = 0; i < 256; ++i)
      units.push_back(i ^ 0xEE);  // children of base 0xEE, which no state has
    units[0] = 1 << 10;           // the root: base 1
  }
  std::string map() const {
    std::string out(4 + units.size() * 4, '\0');
    const auto bytes = static_cast<uint32_t>(units.size() * 4);
    std::memcpy(out.data(), &bytes, 4);
    std::memcpy(out.data() + 4, units.data(), bytes);
    return out + replacements;
  }
};
constexpr uint32_t kHasValue = 0x100, kIsValue = 0x80000000u;
uint32_t unit(uint32_t label, uint32_t offset, bool has_value = false) {
  return offset << 10 | (has_value ? kHasValue : 0) | label;
}

TEST(HostileModel, AHandMadeModelAndTrieAreAccepted) {
  EXPECT_EQ(error_of(SpmModel{}), "none");
  Trie trie;                                 // 'a' -> "x"
  trie.units[1 ^ 'a'] = unit('a', 2, true);  // base (1 ^ 'a') ^ 2
  trie.units[1 ^ 'a' ^ 2] = kIsValue | 1;
  auto subwords = Subwords::create(serialize({.character_map = trie.map(), .extra = {}}));
  ASSERT_TRUE(subwords.has_value()) << subwords.error().message;
  EXPECT_EQ(subwords->encode("a").value().texts, (std::vector<std::string>{"▁", "x"}));
}

TEST(HostileModel, ATrieThatLeavesItsArrayIsRefused) {
  Trie trie;
  trie.units[0] = unit(0, 256);
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("leaves its 256 units"),
            std::string::npos);
  trie.units[0] = unit(0, 1) | 0x200 | (0x1FFFFFu << 10);
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("leaves its"), std::string::npos);
}

TEST(HostileModel, AReplacementOutsideItsTableIsRefused) {
  Trie trie;
  trie.units[1 ^ 'a'] = unit('a', 2, true);
  trie.units[1 ^ 'a' ^ 2] = kIsValue | 3;
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("value 3"), std::string::npos);
  trie.units[1 ^ 'a' ^ 2] = kIsValue | 1;
  trie.replacements = "xx";
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("NUL"), std::string::npos);
  trie.replacements = std::string(300, 'x') + '\0';
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("more than 256"), std::string::npos);
}

TEST(HostileModel, ATrieThatLoopsIsRefused) {
  // 'a' leads back to the state that it came from: "aaaa..." would overflow the library's array of 32
  // matches.
  Trie trie;
  trie.units[1 ^ 'a'] = unit('a', 'a', true);  // base 1 again
  trie.units[1] = kIsValue | 1;
  EXPECT_NE(error_of({.character_map = trie.map(), .extra = {}}).find("loop"), std::string::npos);
}

TEST(HostileModel, ATrieWithTooManyNestedKeysIsRefused) {
  // a, aa, aaa, ...: state k has base 2k (blocks of 256 keep the label reachable).
  auto chain = [](uint32_t keys) {
    Trie trie;
    trie.units.assign(256 * (keys + 2), 0);
    for (uint32_t i = 0; i < trie.units.size(); ++i) trie.units[i] = (i & 0xFF) ^ 0xEE;
    trie.units[0] = unit(0, 256);
    for (uint32_t k = 1; k <= keys; ++k) {
      const uint32_t index = 256 * k ^ 'a', next_base = 256 * (k + 1);
      trie.units[index] = unit('a', index ^ next_base, true);
      trie.units[next_base] = kIsValue | 1;
    }
    return error_of({.character_map = trie.map(), .extra = {}});
  };
  EXPECT_EQ(chain(32), "none");
  EXPECT_NE(chain(33).find("nests more than 32"), std::string::npos);
}

TEST(HostileModel, WrongSizesOfACharacterMapAreRefused) {
  const std::string good = Trie().map();
  EXPECT_EQ(error_of({.character_map = good, .extra = {}}), "none");
  for (uint32_t bytes : {0u, 4u, 1023u, 1028u, 2048u, 0xFFFFFC00u}) {
    std::string map = good;
    std::memcpy(map.data(), &bytes, 4);
    EXPECT_NE(error_of({.character_map = map, .extra = {}}).find("character map"), std::string::npos)
        << bytes;
  }
  EXPECT_NE(error_of({.character_map = "abc", .extra = {}}).find("character map"), std::string::npos);
}

TEST(HostileModel, BadPiecesAreRefused) {
  auto with = [](SpmPiece piece) {
    SpmModel model;
    model.pieces.push_back(std::move(piece));
    return error_of(model);
  };
  EXPECT_EQ(with({"a"}), "none");
  EXPECT_NE(with({""}), "none");
  EXPECT_NE(with({std::string("a\0b", 3)}), "none");
  EXPECT_NE(with({"\xFF"}), "none");
  EXPECT_NE(with({std::string(1025, 'a')}), "none");
  EXPECT_NE(with({"a", std::numeric_limits<float>::quiet_NaN()}), "none");
  EXPECT_NE(with({"a", -std::numeric_limits<float>::infinity()}), "none");
  EXPECT_NE(with({"▁"}), "none") << "twice";
  EXPECT_NE(with({"other", 0, 2}), "none") << "two <unk>";
  EXPECT_NE(with({"<0x00>", 0, 6}), "none") << "a byte piece without the others";
  EXPECT_NE(error_of({.pieces = {{"a"}}, .character_map = {}, .extra = {}}), "none") << "no <unk>";
  EXPECT_NE(error_of({.pieces = {}, .character_map = {}, .extra = {}}), "none");
}

TEST(HostileModel, TooManyNestedUserSymbolsAreRefused) {
  auto nested = [](size_t symbols) {
    SpmModel model;
    for (size_t i = 1; i <= symbols; ++i) model.pieces.push_back({std::string(i, 'u'), 0, 4});
    return error_of(model);
  };
  EXPECT_EQ(nested(64), "none");
  EXPECT_NE(nested(65).find("prefixes of one another"), std::string::npos);
}

TEST(HostileModel, ASecondCopyOfAMessageIsRefused) {
  EXPECT_NE(error_of({.character_map = {}, .extra = protobuf_field(3, "")}).find("twice"), std::string::npos);
  EXPECT_NE(
      error_of({.character_map = {}, .extra = protobuf_field(4, std::string(70000, 'x'))}).find("self-test"),
      std::string::npos);
}

TEST(HostileModel, ScoresNearTheEndOfFloatDoNoHarm) {
  for (int type : {1, 2}) {
    SpmModel model;
    model.model_type = type;
    model.pieces.insert(model.pieces.end(), {{"a", -3e38f}, {"aa", 3e38f}, {"b", -3e38f}, {"ab", 3e38f}});
    EXPECT_TRUE(survives(serialize(model)));
    auto subwords = Subwords::create(serialize(model));
    (void)subwords->encode("aabaabababbbbaaaa aab baaab" + std::string(500, 'a'));
  }
}

TEST(HostileModel, RandomDamageGivesAnErrorOrASafeModel) {
  const std::string good = golden_files("small-b")->source_spm;
  ASSERT_TRUE(survives(good));
  size_t survived = 0;
  for (uint32_t seed = 0; seed < 600; ++seed) {
    std::mt19937 random(seed);
    std::string model = good;
    // Pieces stand at the start, the character map follows: half the damage is done to each.
    const size_t reach = seed % 2 ? model.size() : 6000;
    for (size_t i = 0, flips = 1 + random() % 6; i < flips; ++i)
      model[random() % reach] ^= static_cast<char>(1 << random() % 8);
    if (seed % 10 == 0) model.resize(random() % model.size());
    survived += survives(model);
  }
  EXPECT_GT(survived, 30u);
  EXPECT_LT(survived, 570u);
}

}  // namespace
}  // namespace duet::tokenizer
