#include "model/dtype.h"

#include <array>

namespace duet::model {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Row, 6> kRows{{{DType::kF32, "f32", 4},
                                    {DType::kF64, "f64", 8},
                                    {DType::kI32, "i32", 4},
                                    {DType::kI64, "i64", 8},
                                    {DType::kU8, "u8", 1},
                                    {DType::kBool, "bool", 1}}};

}  // namespace

size_t element_bytes(DType dtype) { return kRows[static_cast<size_t>(dtype)].bytes; }
std::string_view dtype_name(DType dtype) { return kRows[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.dtype;
  return std::nullopt;
}

}  // namespace duet::model
