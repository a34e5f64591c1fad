#include "runner/tensor_text.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "runner/elements.h"

namespace duet::runner {
namespace {

using model::DType;
using model::TensorView;

template <class T>
std::string text(DType dtype, std::vector<T> values, std::vector<int64_t> dims, bool all = false) {
  TensorView view{reinterpret_cast<std::byte*>(values.data()), dtype, static_cast<int>(dims.size()), {}};
  std::copy(dims.begin(), dims.end(), view.dims);
  return tensor_text(view, all);
}

TEST(TensorTextTest, ATensorSaysDtypeSizesAndElements) {
  EXPECT_EQ(text<float>(DType::kF32, {1, 0.1F, -2.5F, 1e30F}, {2, 2}),
            "f32 tensor(sizes=[2, 2], [1., 0.1, -2.5, 1e+30])");
  EXPECT_EQ(text<double>(DType::kF64, {0.1, -0.0}, {2}), "f64 tensor(sizes=[2], [0.1, -0.])");
  EXPECT_EQ(text<int32_t>(DType::kI32, {-7}, {}), "i32 tensor(sizes=[], [-7])");
  EXPECT_EQ(text<int64_t>(DType::kI64, {INT64_MIN}, {1}), "i64 tensor(sizes=[1], [-9223372036854775808])");
  EXPECT_EQ(text<uint8_t>(DType::kU8, {200}, {1}), "u8 tensor(sizes=[1], [200])");
  EXPECT_EQ(text<uint8_t>(DType::kBool, {1, 0}, {2}), "bool tensor(sizes=[2], [true, false])");
  EXPECT_EQ(text<float>(DType::kF32, {}, {0, 3}), "f32 tensor(sizes=[0, 3], [])");
}

TEST(TensorTextTest, WhatIsNoNumberSaysSo) {
  float infinite = std::numeric_limits<float>::infinity();
  EXPECT_EQ(text<float>(DType::kF32, {infinite, -infinite, std::numeric_limits<float>::quiet_NaN()}, {3}),
            "f32 tensor(sizes=[3], [inf, -inf, nan])");
}

TEST(TensorTextTest, LongTensorsShowTheirEndsUnlessAllIsAskedFor) {
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(text(DType::kI32, values, {7}), "i32 tensor(sizes=[7], [0, 1, 2, ..., 4, 5, 6])");
  EXPECT_EQ(text(DType::kI32, values, {7}, true), "i32 tensor(sizes=[7], [0, 1, 2, 3, 4, 5, 6])");
  values.pop_back();
  EXPECT_EQ(text(DType::kI32, values, {6}), "i32 tensor(sizes=[6], [0, 1, 2, 3, 4, 5])");
}

TEST(TensorTextTest, FloatsAreShortAndReadBackAsTheSameBits) {
  for (uint32_t bits = 1; bits < 0x7f800000; bits += 1234567) {
    float value, back = 0;
    std::memcpy(&value, &bits, sizeof value);
    std::string word = element_text(DType::kF32, reinterpret_cast<const std::byte*>(&value));
    ASSERT_TRUE(store_element(DType::kF32, std::stod(word), reinterpret_cast<std::byte*>(&back))) << word;
    EXPECT_EQ(back, value) << word;
  }
}

}  // namespace
}  // namespace duet::runner
