#include "tokenizer/vocabulary.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>

namespace duet::tokenizer {
namespace {

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

const std::vector<std::string> kPieces{"</s>", "<unk>", "▁the", "a", "ab", "", "▁", "zebra", "☃", "<pad>"};

std::string section() { return Vocabulary::serialize(kPieces).value(); }

TEST(Vocabulary, EveryPieceLeadsToItsIdAndBack) {
  const std::string blob = section();
  Vocabulary table = Vocabulary::open(bytes(blob)).value();
  ASSERT_EQ(table.size(), kPieces.size());
  for (uint32_t id = 0; id < table.size(); ++id) {
    EXPECT_EQ(table.piece(id), kPieces[id]);
    EXPECT_EQ(table.id(kPieces[id]), id);
  }
  for (const char* absent : {"▁th", "▁thee", "b", "~", "</S>", "!"})
    EXPECT_EQ(table.id(absent), std::nullopt) << absent;
}

TEST(Vocabulary, ReadsAnUnalignedSectionInPlace) {
  std::string blob = section();
  blob.insert(blob.begin(), 'x');
  Vocabulary table = Vocabulary::open(bytes(blob).subspan(1)).value();
  EXPECT_EQ(table.piece(7), "zebra");
  EXPECT_GE(table.piece(7).data(), blob.data());
  EXPECT_LT(table.piece(7).data(), blob.data() + blob.size());
}

TEST(Vocabulary, AnEmptyTableHasNoPieces) {
  const std::string blob = Vocabulary::serialize({}).value();
  Vocabulary table = Vocabulary::open(bytes(blob)).value();
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.id("a"), std::nullopt);
}

TEST(Vocabulary, SerializeRefusesDoublesAndIllFormedPieces) {
  auto doubled = Vocabulary::serialize(std::vector<std::string>{"a", "b", "a"});
  ASSERT_FALSE(doubled.has_value());
  EXPECT_NE(doubled.error().message.find("'a'"), std::string::npos);
  EXPECT_FALSE(Vocabulary::serialize(std::vector<std::string>{"a\xFF"}).has_value());
}

TEST(Vocabulary, EveryTruncationIsAnError) {
  const std::string blob = section();
  for (size_t size = 0; size < blob.size(); ++size)
    EXPECT_FALSE(Vocabulary::open(bytes(blob).first(size)).has_value());
  const std::string longer = blob + "x";
  EXPECT_FALSE(Vocabulary::open(bytes(longer)).has_value());
}

TEST(Vocabulary, HugeCountsAreErrors) {
  for (uint32_t count : {0x15555555u, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    std::string blob = section();
    std::memcpy(blob.data(), &count, 4);
    EXPECT_FALSE(Vocabulary::open(bytes(blob)).has_value());
  }
}

TEST(Vocabulary, OffsetsThatDecreaseOrLeaveTheBytesAreErrors) {
  const std::string good = section();
  const size_t offsets = 4 * (1 + 2 * kPieces.size());
  for (uint32_t value : {0u, 1000u, 0xFFFFFFFFu}) {
    std::string blob = good;
    std::memcpy(blob.data() + offsets + 4 * 5, &value, 4);
    auto table = Vocabulary::open(bytes(blob));
    ASSERT_FALSE(table.has_value());
    EXPECT_NE(table.error().message.find("offsets["), std::string::npos) << table.error().message;
  }
}

TEST(Vocabulary, CorruptBytesGiveAnErrorOrASafeTable) {
  const std::string good = section();
  size_t opened = 0;
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    std::string blob = good;
    for (size_t i = 0, flips = 1 + random() % 3; i < flips; ++i)
      blob[random() % blob.size()] = static_cast<char>(random());
    auto table = Vocabulary::open(bytes(blob));
    if (!table) continue;
    ++opened;
    std::set<std::string_view> seen;
    for (uint32_t id = 0; id < table->size(); ++id) {
      EXPECT_TRUE(seen.insert(table->piece(id)).second);
      EXPECT_EQ(table->id(table->piece(id)), id);
    }
  }
  EXPECT_GT(opened, 0u) << "a changed letter that keeps the order is a valid table";
  EXPECT_LT(opened, 2000u);
}

}  // namespace
}  // namespace duet::tokenizer
