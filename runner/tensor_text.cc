#include "runner/tensor_text.h"

#include <span>

#include "runner/elements.h"

namespace duet::runner {

Status write_tensor_text(const model::TensorView& tensor, bool all, const TextSink& write) {
  DUET_TRY(write(fmt::format("{} tensor(sizes=[{}], [", model::dtype_name(tensor.dtype),
                             fmt::join(std::span(tensor.dims, static_cast<size_t>(tensor.rank)), ", "))));
  int64_t count = tensor.elements();
  auto bytes = static_cast<int64_t>(model::element_bytes(tensor.dtype));
  bool whole = all || count <= 2 * kAbridgedElements;
  for (int64_t i = 0; i < count; ++i) {
    if (!whole && i == kAbridgedElements) {
      i = count - kAbridgedElements;
      DUET_TRY(write(", ..."));
    }
    DUET_TRY(write((i == 0 ? "" : ", ") + element_text(tensor.dtype, tensor.data + i * bytes)));
  }
  return write("])");
}

std::string tensor_text(const model::TensorView& tensor, bool all) {
  std::string text;
  Status done = write_tensor_text(tensor, all, [&](std::string_view piece) -> Status {
    text += piece;
    return {};
  });
  DUET_CHECK(done.has_value());
  return text;
}

}  // namespace duet::runner
