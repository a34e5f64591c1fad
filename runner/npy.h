// NumPy's array files, format versions 1.0 to 3.0:
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/error.h"
#include "model/tensor_view.h"
#include "runner/multi_entry_point_runner.h"
#include "runner/whole_file.h"

namespace duet::runner {

// A file whose header has been read. Arrays in Fortran order are put into C order when they are read;
// big-endian ones and dtypes that Duet does not have are refused.
class NpyFile {
 public:
  // Errors: kIo; kBadInput for what is no such file, or is not as long as its header says; kUnsupported for
  // dtypes, byte orders and more than 4 dimensions.
  static Result<NpyFile> open(const std::string& path);

  model::DType dtype() const { return dtype_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  // The array; once. Takes as much memory as the file has bytes. Errors: kIo, kBadInput.
  Result<Tensor> read();

 private:
  explicit NpyFile(InputFile file) : file_(std::move(file)) {}
  Result<std::string> read_header();
  Status parse_header(const std::string& header);

  InputFile file_;
  model::DType dtype_ = model::DType::kF32;
  bool fortran_order_ = false;
  std::vector<int64_t> dims_;
};

// Version 1.0, C order, as NumPy writes it; see write_whole_file(). Errors: kIo.
Status write_npy(const std::string& path, const model::TensorView& tensor);

}  // namespace duet::runner
