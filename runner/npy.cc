#include "runner/npy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "runner/report.h"

namespace duet::runner {
namespace {

using model::DType;

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr uint32_t kMostHeaderBytes = 65536;  // one of a plain array has about a hundred
constexpr size_t kAlignment = 64;

struct NpyDType {
  DType dtype;
  std::string_view descr;  // little-endian
};
constexpr std::array<NpyDType, 6> kDTypes{{{DType::kF32, "<f4"},
                                           {DType::kF64, "<f8"},
                                           {DType::kI32, "<i4"},
                                           {DType::kI64, "<i8"},
                                           {DType::kU8, "|u1"},
                                           {DType::kBool, "|b1"}}};

Result<DType> find_dtype(std::string_view descr) {
  for (const NpyDType& row : kDTypes)
    if (row.descr == descr ||
        (row.descr[0] == '|' && descr.size() == 3 && descr.substr(1) == row.descr.substr(1)))
      return row.dtype;
  if (descr.starts_with('>'))
    return failure(ErrorCode::kUnsupported,
                   "dtype '{}' is big-endian; save it with .astype(a.dtype.newbyteorder('<'))",
                   printable(descr.substr(0, 40)));
  return failure(ErrorCode::kUnsupported, "dtype '{}', expected '<f4', '<f8', '<i4', '<i8', '|u1' or '|b1'",
                 printable(descr.substr(0, 40)));
}

// The header is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : text_(text) {}

  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::optional<std::string_view> quoted() {
    skip_spaces();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) return std::nullopt;
    size_t begin = at_ + 1, end = text_.find(text_[at_], begin);
    if (end == std::string_view::npos) return std::nullopt;
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  std::optional<bool> boolean() {
    skip_spaces();
    for (bool value : {false, true}) {
      std::string_view word = value ? "True" : "False";
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    return std::nullopt;
  }
  std::optional<std::vector<int64_t>> tuple() {
    if (!accept('(')) return std::nullopt;
    std::vector<int64_t> numbers;
    while (!accept(')')) {
      skip_spaces();
      int64_t number = 0;
      auto [end, problem] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), number);
      if (problem != std::errc() || number < 0) return std::nullopt;
      at_ = static_cast<size_t>(end - text_.data());
      accept('L');  // of Python 2
      numbers.push_back(number);
      if (!accept(',') && !(at_ < text_.size() && text_[at_] == ')')) return std::nullopt;
    }
    return numbers;
  }
  bool at_end() {
    skip_spaces();
    return at_ == text_.size();
  }

 private:
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  std::string_view text_;
  size_t at_ = 0;
};

// Elements as they stand in Fortran order (the first index runs fastest) to C order.
std::vector<std::byte> to_c_order(const std::vector<std::byte>& from, const std::vector<int64_t>& dims,
                                  size_t element_bytes) {
  std::vector<std::byte> to(from.size());
  std::vector<int64_t> index(dims.size());
  std::vector<size_t> strides(dims.size());
  size_t stride = element_bytes;
  for (size_t axis = 0; axis < dims.size(); stride *= static_cast<size_t>(dims[axis]), ++axis)
    strides[axis] = stride;
  size_t source = 0;
  for (size_t at = 0; at < to.size(); at += element_bytes) {
    std::memcpy(to.data() + at, from.data() + source, element_bytes);
    for (size_t axis = dims.size(); axis-- > 0;) {
      source += strides[axis];
      if (++index[axis] < dims[axis]) break;
      source -= strides[axis] * static_cast<size_t>(dims[axis]);
      index[axis] = 0;
    }
  }
  return to;
}

}  // namespace

Result<NpyFile> NpyFile::open(const std::string& path) {
  DUET_ASSIGN(InputFile input, InputFile::open(path));
  NpyFile file(std::move(input));
  DUET_ASSIGN(std::string header, file.read_header());
  Status parsed = file.parse_header(header);
  if (!parsed) return failure(parsed.error().code, "{}: {}", path, parsed.error().message);
  uint64_t bytes = model::element_bytes(file.dtype_);
  bool fits = true;
  for (int64_t dim : file.dims_)
    fits = fits && !__builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes);
  if (!fits || bytes != file.file_.left())
    return failure(ErrorCode::kBadInput, "{}: {} bytes follow the header, but an array of {} [{}] takes {}",
                   path, file.file_.left(), model::dtype_name(file.dtype_), fmt::join(file.dims_, ", "),
                   fits ? std::to_string(bytes) : "more than any file has");
  return file;
}

Result<std::string> NpyFile::read_header() {
  std::array<std::byte, 12> start{};
  auto byte = [&](size_t i) { return std::to_integer<uint32_t>(start[i]); };
  auto not_npy = [&](const std::string& why) {
    return failure(ErrorCode::kBadInput, "{}: is no .npy file: {}", file_.path(), why);
  };
  if (file_.bytes() < start.size()) return not_npy(fmt::format("it has {} bytes", file_.bytes()));
  DUET_TRY(file_.read(std::span(start).first(8)));
  if (std::memcmp(start.data(), kMagic.data(), kMagic.size()) != 0)
    return not_npy("it does not begin with \"\\x93NUMPY\"");
  if (byte(6) < 1 || byte(6) > 3 || byte(7) != 0)
    return failure(ErrorCode::kUnsupported, "{}: format version {}.{}, expected 1.0, 2.0 or 3.0",
                   file_.path(), byte(6), byte(7));
  size_t length_bytes = byte(6) == 1 ? 2 : 4;
  DUET_TRY(file_.read(std::span(start).subspan(8, length_bytes)));
  uint32_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) length = length << 8 | byte(8 + i);
  if (length > kMostHeaderBytes || length > file_.left())
    return not_npy(fmt::format("its header has {} bytes, {} are left in the file and {} allowed", length,
                               file_.left(), kMostHeaderBytes));
  std::string header(length, '\0');
  DUET_TRY(file_.read(std::as_writable_bytes(std::span(header))));
  return header;
}

Status NpyFile::parse_header(const std::string& header) {
  auto wrong = [&] {
    return failure(ErrorCode::kBadInput,
                   "the header is not {{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4)}}: {}",
                   printable(std::string_view(header).substr(0, 100)));
  };
  HeaderParser parser(header);
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
  if (!parser.accept('{')) return wrong();
  while (!parser.accept('}')) {
    auto key = parser.quoted();
    if (!key || !parser.accept(':')) return wrong();
    bool read = false;
    if (*key == "descr") {
      if (parser.accept('['))
        return failure(ErrorCode::kUnsupported, "a structured array, expected one of plain numbers");
      read = (descr = parser.quoted()).has_value();
    } else if (*key == "fortran_order") {
      read = (fortran_order = parser.boolean()).has_value();
    } else if (*key == "shape") {
      read = (shape = parser.tuple()).has_value();
    }
    if (!read) return wrong();
    if (!parser.accept(',')) {
      if (!parser.accept('}')) return wrong();
      break;
    }
  }
  if (!parser.at_end() || !descr || !fortran_order || !shape) return wrong();
  if (shape->size() > model::kMaxRank)
    return failure(ErrorCode::kUnsupported, "{} dimensions, expected at most {}", shape->size(),
                   model::kMaxRank);
  DUET_ASSIGN(dtype_, find_dtype(*descr));
  fortran_order_ = *fortran_order;
  dims_ = std::move(*shape);
  return {};
}

Result<Tensor> NpyFile::read() {
  Tensor tensor{dtype_, dims_, std::vector<std::byte>(file_.left())};
  DUET_TRY(file_.read(tensor.data));
  if (fortran_order_ && dims_.size() > 1)
    tensor.data = to_c_order(tensor.data, dims_, model::element_bytes(dtype_));
  return tensor;
}

Status write_npy(const std::string& path, const model::TensorView& tensor) {
  std::string shape;
  for (int i = 0; i < tensor.rank; ++i) shape += fmt::format("{}{},", i == 0 ? "" : " ", tensor.dims[i]);
  if (tensor.rank > 1) shape.pop_back();  // a comma makes a tuple of one
  std::string_view descr = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const NpyDType& row) {
                             return row.dtype == tensor.dtype;
                           })->descr;
  std::string header(kMagic);
  header += std::string("\x01\x00\x00\x00", 4);
  header += fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  header.resize((header.size() + kAlignment) / kAlignment * kAlignment - 1, ' ');
  header += '\n';
  size_t length = header.size() - 10;
  header[8] = static_cast<char>(length & 0xFF);
  header[9] = static_cast<char>(length >> 8);
  std::span<const std::byte> parts[] = {std::as_bytes(std::span(header)), {tensor.data, tensor.bytes()}};
  return write_whole_file(path, parts);
}

}  // namespace duet::runner
