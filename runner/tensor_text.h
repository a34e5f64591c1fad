// Tensors as text: "f32 tensor(sizes=[2, 3], [1., 2., 3., 4., 5., 6.])", all dimensions in one list.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "memory/error.h"
#include "model/tensor_view.h"

namespace duet::runner {

inline constexpr int64_t kAbridgedElements = 3;  // shown of each end of a tensor with more than twice as many

// Abridged or all elements.
std::string tensor_text(const model::TensorView& tensor, bool all);

// The same piece by piece, for tensors whose text would be large. Errors: those of `write`.
using TextSink = std::function<Status(std::string_view)>;
Status write_tensor_text(const model::TensorView& tensor, bool all, const TextSink& write);

}  // namespace duet::runner
