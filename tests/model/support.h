// Small programs to start from, and views of plain vectors to call them with.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/exporter.h"
#include "model/session.h"
#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {

template <class T>
TensorView view_of(std::vector<T>& values, std::vector<int64_t> dims) {
  DType dtype = std::is_same_v<T, float>     ? DType::kF32
                : std::is_same_v<T, int32_t> ? DType::kI32
                                             : DType::kI64;
  TensorView view{reinterpret_cast<std::byte*>(values.data()), dtype, static_cast<int>(dims.size()), {}};
  std::copy(dims.begin(), dims.end(), view.dims);
  return view;
}
template <class T>
TensorView view_of(std::vector<T>& values) {
  return view_of(values, {static_cast<int64_t>(values.size())});
}

// set_cache(k, v) writes rows of 20 into two caches of 10 rows, get_cache gives them, version gives a
// constant.
void build_cache(MultiEntryPointExporter& exporter);

// reset_encode_prefill, decode and release of SmallCheckpoint's model: every kind of operator but fill and
// add.
void build_small_marian(MultiEntryPointExporter& exporter);

// Saves as DIRECTORY/NAME.duet and opens; null, and a failed test, on errors.
std::shared_ptr<const Program> save_and_open(MultiEntryPointExporter& exporter,
                                             const TemporaryDirectory& directory,
                                             const std::string& name = "program");

// The program file's bytes with a header checksum that fits them, so that what lies behind it is reached.
// Unchanged when they have no whole header.
std::string resealed(std::string bytes);

std::unique_ptr<Session> open_session(std::shared_ptr<const Program> program, Limits limits = {},
                                      int threads = 1);

}  // namespace duet::model
