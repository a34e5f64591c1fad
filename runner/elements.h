// Single elements of tensors of any dtype: as numbers, to convert them, and as text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "model/dtype.h"
#include "runner/multi_entry_point_runner.h"

namespace duet::runner {

using Number = std::variant<int64_t, double>;  // bools are 0 and 1

Number load_element(model::DType dtype, const std::byte* from);

// Writes the number if the dtype can hold it: whole numbers must keep their value, other numbers may be
// rounded to the nearest f32 (not to infinity). False, and nothing written, if not.
bool store_element(model::DType dtype, Number number, std::byte* to);

// As short as it can be read back: "1." and "0.1" for floats, "-3", "true", "nan".
std::string element_text(model::DType dtype, const std::byte* from);

// The same numbers with another dtype. Errors: kBadInput naming the first element that does not fit.
Result<Tensor> convert(Tensor tensor, model::DType dtype);

}  // namespace duet::runner
