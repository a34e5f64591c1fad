// A program as data: symbols, constants, shared buffers and methods, the same whether it was just built by
// the exporter or opened from a file. Immutable once checked; any number of sessions in any thread may share
// one.
//
// Invariants after check_program():
//  1. Names of symbols, constants + shared buffers, methods, and of the values of a method are unique.
//  2. Every reference is in range; a value is defined by an input or by exactly one earlier operator.
//  3. Operators write to their outputs and, in place, only to shared buffers.
//  4. Declared shapes and dtypes are those that the operators infer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "memory/error.h"
#include "memory/mapped_file.h"
#include "model/dtype.h"
#include "model/expression.h"
#include "model/tensor_view.h"

namespace duet::model {

class Operator;
using memory::LoadMode;

inline constexpr int64_t kPanelWidth =
    16;  // outputs per weight panel: one AVX-512 register, two of AVX2, four of NEON

using Dim = Expression;  // kInteger or kSymbol only
using Shape = std::vector<Dim>;
std::string shape_text(const Shape& shape);  // "[slots, 512]"

struct Symbol {
  enum class Kind : uint8_t {
    kLimit,    // chosen when a session is made, between min and max; `value` is the default
    kDerived,  // follows from limits by `value`
    kDynamic,  // the size of an input, different in every call, between min and max
  };
  std::string name;
  Kind kind = Kind::kLimit;
  Expression min = 1;
  Expression max = 1;
  Expression value = 1;
  std::string help;  // what the limit counts, for error messages and `duet info`
};

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
};

enum class Layout : uint8_t {
  kRows,    // row-major
  kPanels,  // [N, K] stored as [ceil(N/16)][K][16], N padded with zeros: as the kernels read it
};

struct Constant : TensorSpec {
  Layout layout = Layout::kRows;
  std::span<const std::byte> data;  // 64-byte aligned in an opened program
  uint64_t checksum = 0;            // XXH3-64 of data
};
// Bytes that a constant of this shape takes; nullopt when a dimension is not a number or the size overflows.
std::optional<uint64_t> constant_bytes(const TensorSpec& spec, Layout layout);

struct SharedBuffer : TensorSpec {
  std::optional<double>
      initial;  // written to every element by et_module_init; without it the buffer starts as zeros
};

// What the elements of an integer input must satisfy; checked before a call changes anything.
struct InputSpec : TensorSpec {
  std::optional<Expression> min_value, max_value;  // both inclusive
  bool distinct = false;                           // no element twice
  std::string sums_to;                             // a dynamic symbol that the elements must add up to
  std::string help;
};

struct ValueRef {
  enum class Space : uint8_t { kNone, kConstant, kShared, kValue };  // kNone: an optional operand left out
  Space space = Space::kNone;
  uint32_t index = 0;
  bool operator==(const ValueRef&) const = default;
};

using Attribute = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<std::string>>;
using Attributes = std::map<std::string, Attribute>;

struct Operation {
  std::string kind;  // e.g. "linear"
  std::string name;  // the layer it came from, e.g. "model.decoder.layers.0.self_attn.q_proj"
  std::vector<ValueRef> inputs;
  std::vector<ValueRef> outputs;  // all kValue
  Attributes attributes;
  std::shared_ptr<const Operator> op;  // made from kind and attributes
};

struct MethodOutput {
  std::string name;
  ValueRef value;
};

struct Method {
  std::string name;
  std::vector<InputSpec> inputs;
  std::vector<TensorSpec> values;  // inputs first, then what the operators produce
  std::vector<MethodOutput> outputs;
  std::vector<Operation> operations;
};

struct ProgramDefinition {
  nlohmann::ordered_json metadata =
      nlohmann::ordered_json::object();  // model facts; the runner gives them meaning
  std::vector<Symbol> symbols;
  std::vector<Constant> constants;
  std::vector<SharedBuffer> shared;
  std::vector<Method> methods;
  std::map<std::string, std::span<const std::byte>>
      sections;  // binary tables: vocabularies, SentencePiece models

  const TensorSpec& spec(const Method& method, ValueRef ref) const;
  const Method* find_method(std::string_view name) const;
  const Symbol* find_symbol(std::string_view name) const;
  size_t symbol_index(std::string_view name) const;  // REQUIRES: the symbol exists
  // What a dimension is when symbols have these values. REQUIRES: its symbol exists.
  int64_t size(const Dim& dim, std::span<const int64_t> symbol_values) const;
  std::optional<uint32_t> find_constant(std::string_view name) const;
  std::optional<uint32_t> find_shared(std::string_view name) const;
};

// Fills in Operation::op and proves the invariants above. Errors: kBadInput naming method, operator and
// tensor.
Status check_program(ProgramDefinition& definition);

// Writes `path` as PATH.part and renames it, so that no half-written program is ever found under `path`.
// Errors: kIo, also when another process is writing it. The format is described in docs/program-format.md.
Status write_program(const ProgramDefinition& definition, const std::string& path);

class Program {
 public:
  // Errors: kIo, kBadInput (what is wrong in which field), kOutOfMemory. Sections are verified against their
  // checksums (they are small and feed foreign parsers); constants are not read, unless `mode` does.
  static Result<std::shared_ptr<const Program>> open(const std::string& path,
                                                     LoadMode mode = LoadMode::kMmap);

  const ProgramDefinition& definition() const { return definition_; }
  const std::string& path() const { return file_.path(); }
  uint64_t file_bytes() const { return file_.bytes().size(); }
  std::span<const std::byte> file() const { return file_.bytes(); }
  // kIo when the file has shrunk since it was opened: then nothing computed from it can be trusted. Sessions
  // ask after every call.
  Status check_file() const { return file_.check_whole(); }
  // The section's bytes, empty when the program has none of that name.
  std::span<const std::byte> section(const std::string& name) const;

  Program(memory::MappedFile file, ProgramDefinition definition)
      : file_(std::move(file)), definition_(std::move(definition)) {}

 private:
  memory::MappedFile file_;
  ProgramDefinition definition_;  // constants and sections point into file_
};

// Limits asked for by name; those not named take the program's defaults.
using Limits = std::map<std::string, int64_t>;

// The value of every symbol of the definition, in its order; a dynamic symbol stands at its maximum.
// Errors: kUsage for an unknown limit or one outside its range; kBadInput when the program's own defaults
// contradict each other.
Result<std::vector<int64_t>> resolve_symbols(const ProgramDefinition& definition, const Limits& limits);

// An expression of limits, derived and dynamic symbols when they have these values. Errors: kBadInput.
Result<int64_t> evaluate(const ProgramDefinition& definition, const Expression& expression,
                         std::span<const int64_t> symbol_values);

// Bytes of a tensor when symbols have these values. Errors: kBadInput on overflow.
Result<uint64_t> tensor_bytes(const ProgramDefinition& definition, const TensorSpec& spec,
                              std::span<const int64_t> symbol_values);

}  // namespace duet::model
