// VALUEs of `duet call`: literals, generators, .npy and raw files. call_values.h is the grammar.
#include "runner/call_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "runner/elements.h"
#include "runner/npy.h"
#include "runner/report.h"
#include "runner/whole_file.h"

namespace duet::runner {
namespace {

using model::DType;
using model::InputSpec;

std::string shown(std::string_view text) {
  return text.size() <= 80 ? printable(text) : printable(text.substr(0, 77)) + "...";
}

// What an input wants, for messages: "f32 [n, 20] with n at most 10".
std::string wanted(const CallTarget& target, const InputSpec& input) {
  std::string text = fmt::format("{} {}", model::dtype_name(input.dtype), model::shape_text(input.shape));
  const char* before = " with ";
  for (const model::Dim& dim : input.shape) {
    if (dim.kind() != model::Expression::Kind::kSymbol) continue;
    size_t index = target.definition.symbol_index(dim.symbol());
    bool dynamic = target.definition.symbols[index].kind == model::Symbol::Kind::kDynamic;
    text +=
        fmt::format("{}{} {} {}", before, dim.symbol(), dynamic ? "at most" : "being", target.symbols[index]);
    before = ", ";
  }
  return printable(text);
}

// Before any memory is taken: whether an input of these dimensions can be part of a call.
Status check_dims(const CallTarget& target, const InputSpec& input, std::span<const int64_t> dims) {
  bool fits = dims.size() == input.shape.size();
  for (size_t axis = 0; fits && axis < dims.size(); ++axis) {
    const model::Dim& dim = input.shape[axis];
    if (dim.kind() != model::Expression::Kind::kSymbol) {
      fits = dims[axis] == dim.value();
      continue;
    }
    size_t index = target.definition.symbol_index(dim.symbol());
    bool dynamic = target.definition.symbols[index].kind == model::Symbol::Kind::kDynamic;
    fits = dynamic ? dims[axis] <= target.symbols[index] : dims[axis] == target.symbols[index];
  }
  if (fits) return {};
  return failure(ErrorCode::kUsage, "its shape is [{}], expected {}", fmt::join(dims, ", "),
                 wanted(target, input));
}

// --- Literals

std::optional<Number> parse_number(std::string_view text) {
  if (text == "true" || text == "false") return Number(int64_t{text == "true"});
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const char *begin = text.data(), *end = begin + text.size();
  int64_t whole = 0;
  if (auto [at, problem] = std::from_chars(begin, end, whole); problem == std::errc() && at == end)
    return Number(whole);
  double real = 0;
  auto [at, problem] = std::from_chars(begin, end, real);
  if (at != end || problem == std::errc::invalid_argument) return std::nullopt;
  // Too near to zero is zero; too large is left to those who know what fits.
  if (problem == std::errc::result_out_of_range) real = std::strtod(std::string(text).c_str(), nullptr);
  return Number(real);
}

class LiteralParser {
 public:
  LiteralParser(std::string_view text, DType dtype) : text_(text), dtype_(dtype) {}

  Result<Tensor> parse() {
    DUET_TRY(item(0));
    skip_spaces();
    if (at_ != text_.size()) return wrong("\"{}\" behind its end", shown(text_.substr(at_)));
    if (scalar_depth_ && *scalar_depth_ != tensor_.dims.size()) return wrong("numbers stand beside lists");
    tensor_.dtype = dtype_;
    return std::move(tensor_);
  }

 private:
  template <class... Args>
  static tl::unexpected<Error> wrong(fmt::format_string<Args...> format, Args&&... args) {
    return failure(ErrorCode::kUsage, format, std::forward<Args>(args)...);
  }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  Status item(size_t depth) { return accept('[') ? list(depth) : scalar(depth); }

  Status list(size_t depth) {
    if (depth >= model::kMaxRank) return wrong("lists are nested more than {} deep", model::kMaxRank);
    if (tensor_.dims.size() <= depth) {
      if (scalar_depth_) return wrong("numbers stand beside lists");
      tensor_.dims.push_back(-1);
    }
    int64_t count = 0;
    if (!accept(']')) {
      do {
        DUET_TRY(item(depth + 1));
        ++count;
      } while (accept(','));
      if (!accept(']')) return wrong("a ] is missing");
    }
    int64_t& dim = tensor_.dims[depth];
    if (dim >= 0 && dim != count)
      return wrong("lists of {} and of {} elements stand side by side", dim, count);
    dim = count;
    return {};
  }

  Status scalar(size_t depth) {
    skip_spaces();
    std::string_view word = text_.substr(at_, text_.find_first_of("[], \t\n", at_) - at_);
    if (word.empty()) return wrong("a number is missing");
    if (scalar_depth_ && *scalar_depth_ != depth) return wrong("numbers stand beside lists");
    scalar_depth_ = depth;
    auto number = parse_number(word);
    if (!number) return wrong("\"{}\" is no number", shown(word));
    std::byte element[8];
    const double* real = std::get_if<double>(&*number);
    const bool too_large =
        real && std::isinf(*real) && word.find_first_of("0123456789") != std::string_view::npos;
    if (too_large || !store_element(dtype_, *number, element))
      return wrong("{} does not fit {}", shown(word), model::dtype_name(dtype_));
    tensor_.data.insert(tensor_.data.end(), element, element + model::element_bytes(dtype_));
    at_ += word.size();
    return {};
  }

  std::string_view text_;
  DType dtype_;
  size_t at_ = 0;
  Tensor tensor_;
  std::optional<size_t> scalar_depth_;  // how many lists are around numbers
};

// --- Shapes

// "[10,20]"; dimensions are numbers.
Result<std::vector<int64_t>> parse_dims(const CallTarget& target, const InputSpec& input,
                                        std::string_view text) {
  if (!text.starts_with('[') || !text.ends_with(']') || text.size() < 2)
    return failure(ErrorCode::kUsage, "expected a shape behind it, like [10,20]; the input is {}",
                   wanted(target, input));
  std::vector<int64_t> dims;
  std::string_view left = text.substr(1, text.size() - 2);
  while (!left.empty() || (!dims.empty() && text[text.size() - 2] == ',')) {
    std::string_view word = left.substr(0, left.find(','));
    left.remove_prefix(std::min(word.size() + 1, left.size()));
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    int64_t dim = 0;
    auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), dim);
    if (problem != std::errc() || end != word.data() + word.size() || dim < 0)
      return failure(ErrorCode::kUsage, "dimension \"{}\" is no number; the input is {}", shown(word),
                     wanted(target, input));
    dims.push_back(dim);
    if (dims.size() > model::kMaxRank)
      return failure(ErrorCode::kUsage, "more than {} dimensions", model::kMaxRank);
  }
  DUET_TRY(check_dims(target, input, dims));
  return dims;
}

// --- Generators: NAME[:DTYPE][DIMS][@SEED]

Result<Tensor> generate(const CallTarget& target, InputSpec input, Fill fill, std::string_view text) {
  uint64_t seed = 0;
  if (size_t at = text.rfind('@'); at != std::string_view::npos && text.find(']') < at) {
    std::string_view word = text.substr(at + 1);
    auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), seed);
    if (fill != Fill::kRand || word.empty() || problem != std::errc() || end != word.data() + word.size())
      return failure(ErrorCode::kUsage, "\"{}\": only rand has a seed, a whole number as in rand[3]@7",
                     shown(text.substr(at)));
    text = text.substr(0, at);
  }
  if (text.starts_with(':')) {
    std::string_view name = text.substr(1, std::min(text.find('['), text.size()) - 1);
    if (name != model::dtype_name(input.dtype))
      return failure(ErrorCode::kUsage, "it is {}, expected {}", shown(name), wanted(target, input));
    text.remove_prefix(name.size() + 1);
  }
  DUET_ASSIGN(auto dims, parse_dims(target, input, text));
  // ones are ones: only rand keeps to bounds. (Elements that add up are for --fill, which knows the sum.)
  input.sums_to.clear();
  if (fill != Fill::kRand) {
    input.min_value = input.max_value = std::nullopt;
    input.distinct = false;
  }
  return make_tensor(target, input, std::move(dims), fill, seed);
}

// --- Files

Result<Tensor> read_npy(const CallTarget& target, const InputSpec& input, const std::string& path) {
  DUET_ASSIGN(NpyFile file, NpyFile::open(path));
  DUET_TRY(check_dims(target, input, file.dims()));
  DUET_ASSIGN(Tensor tensor, file.read());
  return convert(std::move(tensor), input.dtype);
}

// The dtype of "FILE:f32[10,20]" and where its colon is.
std::optional<std::pair<size_t, DType>> find_raw_suffix(std::string_view text) {
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  std::string_view suffix = text.substr(colon + 1);
  auto dtype = model::parse_dtype(suffix.substr(0, suffix.find('[')));
  if (!dtype) return std::nullopt;
  return std::pair(colon, *dtype);
}

Result<Tensor> read_raw(const CallTarget& target, const InputSpec& input, std::string_view text, size_t colon,
                        DType dtype) {
  std::string_view shape = text.substr(std::min(text.find('[', colon), text.size()));
  DUET_ASSIGN(auto dims, parse_dims(target, input, shape));
  DUET_ASSIGN(InputFile file, InputFile::open(std::string(text.substr(0, colon))));
  uint64_t bytes = model::element_bytes(dtype);  // cannot overflow: the session was planned for such inputs
  for (int64_t dim : dims) bytes *= static_cast<uint64_t>(dim);
  if (file.bytes() != bytes)
    return failure(ErrorCode::kBadInput, "the file has {} bytes, {} [{}] takes {}", file.bytes(),
                   model::dtype_name(dtype), fmt::join(dims, ", "), bytes);
  Tensor tensor{dtype, std::move(dims), std::vector<std::byte>(bytes)};
  DUET_TRY(file.read(tensor.data));
  return convert(std::move(tensor), input.dtype);
}

Result<Tensor> parse_any(const CallTarget& target, const InputSpec& input, std::string_view text) {
  std::string_view word = text.substr(0, text.find_first_of(":["));
  if (auto fill = parse_fill(word)) return generate(target, input, *fill, text.substr(word.size()));
  if (auto raw = find_raw_suffix(text)) return read_raw(target, input, text, raw->first, raw->second);
  if (text.ends_with(".npy")) return read_npy(target, input, std::string(text));
  if (text.substr(std::min(text.find_first_not_of(' '), text.size())).starts_with('[') ||
      parse_number(text)) {
    DUET_ASSIGN(Tensor tensor, LiteralParser(text, input.dtype).parse());
    DUET_TRY(check_dims(target, input, tensor.dims));
    return tensor;
  }
  std::error_code ignored;
  if (!text.empty() && std::filesystem::exists(std::string(text), ignored))
    return failure(ErrorCode::kUsage,
                   "a file that is no .npy needs its dtype and shape behind it, as in {}:{}[10,20]",
                   shown(text), model::dtype_name(input.dtype));
  return failure(ErrorCode::kUsage,
                 "expected a literal ([1,2] or 7), ones[3], zeros[3], range[3], rand[3]@seed, FILE.npy or "
                 "FILE:f32[3]; the input is {}",
                 wanted(target, input));
}

}  // namespace

Result<Tensor> parse_value(const CallTarget& target, const InputSpec& input, std::string_view text) {
  auto where = [&] {
    return fmt::format("method {}: {}={}", printable(target.method.name), printable(input.name), shown(text));
  };
  try {
    auto tensor = parse_any(target, input, text);
    if (!tensor) return failure(tensor.error().code, "{}: {}", where(), tensor.error().message);
    return tensor;
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "{}: out of memory", where());
  }
}

}  // namespace duet::runner
