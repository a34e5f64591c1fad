#include "model/importers/stored_tensor.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace duet::model {
namespace {

// The value of a half by the definition in IEEE 754, independent of the conversion under test.
double value_of_half(unsigned bits) {
  double sign = bits & 0x8000u ? -1 : 1;
  int exponent = static_cast<int>((bits >> 10) & 31u);
  double fraction = bits & 0x3FFu;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : std::nan("");
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(StoredTensor, EveryHalfConvertsExactly) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    float value = float_from_f16(static_cast<uint16_t>(bits));
    double expected = value_of_half(bits);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_EQ(std::bit_cast<uint32_t>(value) & 0x7FFFFFu, (bits & 0x3FFu) << 13) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(value), expected) << bits;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000u) != 0) << bits;
  }
}

#ifdef __FLT16_MAX__
TEST(StoredTensor, EveryHalfConvertsAsTheCompilerConvertsIt) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    auto expected = static_cast<float>(half);
    float value = float_from_f16(static_cast<uint16_t>(bits));
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}
#endif

TEST(StoredTensor, EveryBfloat16IsTheUpperHalfOfAFloat) {
  for (unsigned bits = 0; bits < 65536; ++bits)
    ASSERT_EQ(std::bit_cast<uint32_t>(float_from_bf16(static_cast<uint16_t>(bits))), bits << 16);
}

TEST(StoredTensor, ElementCountsAndBytesNoticeOverflow) {
  const uint64_t big = uint64_t{1} << 32;
  EXPECT_EQ(element_count(std::vector<uint64_t>{}), 1u);
  EXPECT_EQ(element_count(std::vector<uint64_t>{2, 3}), 6u);
  EXPECT_EQ(element_count(std::vector<uint64_t>{big, big}), std::nullopt);
  EXPECT_EQ(stored_bytes(StoredType::kF32, std::vector<uint64_t>{big, big / 8}), std::nullopt);
  EXPECT_EQ(stored_bytes(StoredType::kBF16, std::vector<uint64_t>{2, 3}), 12u);
  EXPECT_EQ(stored_bytes(StoredType::kF4, std::vector<uint64_t>{3}), std::nullopt);
  EXPECT_EQ(stored_bytes(StoredType::kF4, std::vector<uint64_t>{4}), 2u);
}

TEST(StoredTensor, TypesAreFoundByTheirName) {
  for (const char* name :
       {"BOOL", "F4", "F6_E2M3", "U8", "I8", "F8_E4M3", "F16", "BF16", "I32", "F32", "F64", "I64"}) {
    ASSERT_TRUE(stored_type(name)) << name;
    EXPECT_STREQ(name_of(*stored_type(name)), name);
  }
  EXPECT_FALSE(stored_type("f32"));
}

TEST(StoredTensor, FloatsAreReadFromUnalignedBytes) {
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001};
  std::byte buffer[7];
  std::memcpy(buffer + 1, halves, 6);
  StoredTensor tensor{StoredType::kF16, {3}, std::span(buffer).subspan(1)};
  auto values = to_finite_floats(tensor, "file", "w");
  ASSERT_TRUE(values);
  EXPECT_EQ(*values, (std::vector<float>{1, -2, 0x1p-24f}));
}

TEST(StoredTensor, NanAndInfinityAreRefusedWithTheirPlace) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
    float values[] = {0, 1, bad, 3};
    StoredTensor tensor{StoredType::kF32, {2, 2}, std::as_bytes(std::span(values))};
    auto result = to_finite_floats(tensor, "some.safetensors", "model.w");
    ASSERT_FALSE(result);
    for (const char* part : {"some.safetensors", "model.w", "[2, 2]", "element 2"})
      EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message;
  }
}

TEST(StoredTensor, IntegersAreNoWeights) {
  std::byte byte[1] = {};
  auto result = to_finite_floats({StoredType::kI8, {1}, byte}, "f", "w");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message, "f: tensor w has dtype I8, expected F32, F16 or BF16");
}

}  // namespace
}  // namespace duet::model
