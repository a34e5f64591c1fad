// Proves a definition's invariants (see program.h); the exporter and the file reader both end here.
#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "model/operators/operator.h"
#include "model/program.h"

namespace duet::model {
namespace {

template <class T>
Status check_unique(const std::vector<T>& items, const char* what) {
  std::set<std::string_view> seen;
  for (const T& item : items) {
    if (item.name.empty()) return failure(ErrorCode::kBadInput, "a {} has no name", what);
    if (!seen.insert(item.name).second)
      return failure(ErrorCode::kBadInput, "{} \"{}\" is defined twice", what, item.name);
  }
  return {};
}

Status check_shape(const ProgramDefinition& definition, const TensorSpec& spec, bool dynamic_allowed) {
  if (spec.shape.size() > kMaxRank)
    return failure(ErrorCode::kBadInput, "tensor {}: more than {} dimensions", spec.name, kMaxRank);
  for (const Dim& dim : spec.shape) {
    if (dim.kind() == Expression::Kind::kInteger && dim.value() >= 0) continue;
    if (dim.kind() != Expression::Kind::kSymbol)
      return failure(ErrorCode::kBadInput, "tensor {}: dimension {}, expected a size or a symbol", spec.name,
                     dim.to_string());
    const Symbol* symbol = definition.find_symbol(dim.symbol());
    if (!symbol)
      return failure(ErrorCode::kBadInput, "tensor {}: unknown symbol {}", spec.name, dim.symbol());
    if (symbol->kind == Symbol::Kind::kDynamic && !dynamic_allowed)
      return failure(ErrorCode::kBadInput,
                     "tensor {}: {} differs from call to call, but a shared buffer's size is fixed",
                     spec.name, dim.symbol());
  }
  return {};
}

class MethodChecker {
 public:
  MethodChecker(const ProgramDefinition& definition, const std::unordered_set<std::string_view>& globals,
                std::span<const int64_t> symbols, Method& method)
      : definition_(definition),
        globals_(globals),
        symbols_(symbols),
        method_(method),
        defined_(method.values.size(), false) {}

  Status check() {
    if (method_.values.size() < method_.inputs.size())
      return failure(ErrorCode::kBadInput, "inputs are not among its values");
    DUET_TRY(check_unique(method_.inputs, "input"));
    DUET_TRY(check_unique(method_.values, "value"));
    DUET_TRY(check_unique(method_.outputs, "output"));
    for (size_t i = 0; i < method_.values.size(); ++i) {
      const TensorSpec& value = method_.values[i];
      DUET_TRY(check_shape(definition_, value, true));
      if (globals_.count(value.name))
        return failure(ErrorCode::kBadInput, "value \"{}\" has the name of a constant or shared buffer",
                       value.name);
      defined_[i] = i < method_.inputs.size();
    }
    for (const InputSpec& input : method_.inputs) DUET_TRY(check_input(input));
    for (size_t i = 0; i < method_.operations.size(); ++i) {
      Status status = check_operation(method_.operations[i]);
      if (!status)
        return failure(status.error().code, "operator {} ({} \"{}\"): {}", i, method_.operations[i].kind,
                       method_.operations[i].name, status.error().message);
    }
    for (const MethodOutput& output : method_.outputs) {
      DUET_TRY(check_reference(output.value, true));
      if (output.value.space == ValueRef::Space::kNone)
        return failure(ErrorCode::kBadInput, "output \"{}\" names no tensor", output.name);
      if (output.value.space == ValueRef::Space::kConstant &&
          definition_.constants[output.value.index].layout != Layout::kRows)
        return failure(ErrorCode::kBadInput, "output \"{}\" is a constant stored in panels, expected rows",
                       output.name);
    }
    DUET_TRY(check_dynamic_symbols());
    for (size_t i = 0; i < defined_.size(); ++i)
      if (!defined_[i])
        return failure(ErrorCode::kBadInput, "value \"{}\" is never computed", method_.values[i].name);
    return {};
  }

 private:
  Status check_input(const InputSpec& input) const {
    bool integers = input.dtype == DType::kI32;
    if ((input.min_value || input.max_value || input.distinct || !input.sums_to.empty()) && !integers)
      return failure(ErrorCode::kBadInput, "input \"{}\": bounds on elements need dtype i32", input.name);
    for (const auto& bound : {input.min_value, input.max_value}) {
      if (!bound) continue;
      auto value = evaluate(definition_, *bound, symbols_);
      if (!value) return failure(ErrorCode::kBadInput, "input \"{}\": {}", input.name, value.error().message);
    }
    if (input.distinct && (!input.min_value || !input.max_value))
      return failure(ErrorCode::kBadInput, "input \"{}\": distinct needs min_value and max_value",
                     input.name);
    if (!input.sums_to.empty()) {
      const Symbol* symbol = definition_.find_symbol(input.sums_to);
      if (!symbol || symbol->kind != Symbol::Kind::kDynamic)
        return failure(ErrorCode::kBadInput, "input \"{}\": sums_to names {}, expected a dynamic symbol",
                       input.name, input.sums_to);
    }
    return {};
  }

  // A call's sizes come from its inputs alone.
  Status check_dynamic_symbols() const {
    std::unordered_set<std::string_view> bound;
    for (const InputSpec& input : method_.inputs)
      for (const Dim& dim : input.shape) bound.insert(dim.symbol());
    for (const TensorSpec& value : method_.values)
      for (const Dim& dim : value.shape)
        if (dim.kind() == Expression::Kind::kSymbol && !bound.count(dim.symbol()) &&
            definition_.find_symbol(dim.symbol())->kind == Symbol::Kind::kDynamic)
          return failure(ErrorCode::kBadInput, "value \"{}\" has size {}, which no input gives", value.name,
                         dim.symbol());
    return {};
  }

  Status check_reference(ValueRef ref, bool must_be_defined) const {
    size_t size = 0;
    switch (ref.space) {
      case ValueRef::Space::kNone:
        return {};
      case ValueRef::Space::kConstant:
        size = definition_.constants.size();
        break;
      case ValueRef::Space::kShared:
        size = definition_.shared.size();
        break;
      case ValueRef::Space::kValue:
        size = method_.values.size();
        break;
    }
    if (ref.index >= size) return failure(ErrorCode::kBadInput, "a reference points outside its table");
    if (must_be_defined && ref.space == ValueRef::Space::kValue && !defined_[ref.index])
      return failure(ErrorCode::kBadInput, "value \"{}\" is used before it is computed",
                     method_.values[ref.index].name);
    return {};
  }

  Status check_operation(Operation& operation) {
    DUET_ASSIGN(operation.op, make_operator(operation.kind, operation.attributes));
    std::vector<OperandSpec> operands;
    for (ValueRef ref : operation.inputs) {
      DUET_TRY(check_reference(ref, true));
      OperandSpec operand;
      if (ref.space != ValueRef::Space::kNone) operand.spec = &definition_.spec(method_, ref);
      operand.writable = ref.space == ValueRef::Space::kShared;
      if (ref.space == ValueRef::Space::kConstant) operand.constant = &definition_.constants[ref.index];
      operands.push_back(operand);
    }
    DUET_ASSIGN(auto inferred, operation.op->infer(operands));
    for (int i : operation.op->written_inputs())
      if (!operands[static_cast<size_t>(i)].writable)
        return failure(ErrorCode::kBadInput, "input {} is changed in place, so it must be a shared buffer",
                       i);
    if (inferred.size() != operation.outputs.size())
      return failure(ErrorCode::kBadInput, "{} outputs, expected {}", operation.outputs.size(),
                     inferred.size());
    for (size_t i = 0; i < inferred.size(); ++i) DUET_TRY(check_output(operation.outputs[i], inferred[i]));
    return {};
  }

  Status check_output(ValueRef ref, const TensorSpec& inferred) {
    DUET_TRY(check_reference(ref, false));
    if (ref.space != ValueRef::Space::kValue)
      return failure(ErrorCode::kBadInput, "an output is not a value of the method");
    const TensorSpec& declared = method_.values[ref.index];
    if (defined_[ref.index])
      return failure(ErrorCode::kBadInput, "value \"{}\" is computed twice", declared.name);
    defined_[ref.index] = true;
    if (declared.dtype != inferred.dtype || declared.shape != inferred.shape)
      return failure(ErrorCode::kBadInput, "value \"{}\" is declared {} {}, but the operator gives {} {}",
                     declared.name, dtype_name(declared.dtype), shape_text(declared.shape),
                     dtype_name(inferred.dtype), shape_text(inferred.shape));
    return {};
  }

  const ProgramDefinition& definition_;
  const std::unordered_set<std::string_view>& globals_;  // names of constants and shared buffers
  std::span<const int64_t> symbols_;                     // values at the defaults
  Method& method_;
  std::vector<bool> defined_;  // per value
};

}  // namespace

Status check_program(ProgramDefinition& definition) {
  DUET_TRY(check_unique(definition.symbols, "symbol"));
  DUET_TRY(check_unique(definition.constants, "constant"));
  DUET_TRY(check_unique(definition.shared, "shared buffer"));
  DUET_TRY(check_unique(definition.methods, "method"));
  if (definition.sections.count("")) return failure(ErrorCode::kBadInput, "a section has no name");
  std::unordered_set<std::string_view> globals;
  for (const SharedBuffer& buffer : definition.shared) globals.insert(buffer.name);
  for (const Constant& constant : definition.constants) {
    if (!globals.insert(constant.name).second)
      return failure(ErrorCode::kBadInput, "\"{}\" is both a constant and a shared buffer", constant.name);
    if (constant.layout == Layout::kPanels && constant.shape.size() != 2)
      return failure(ErrorCode::kBadInput, "constant {}: panels need two dimensions", constant.name);
    auto bytes = constant_bytes(constant, constant.layout);
    if (!bytes || *bytes != constant.data.size())
      return failure(ErrorCode::kBadInput, "constant {}: {} bytes do not fit {} {}", constant.name,
                     constant.data.size(), dtype_name(constant.dtype), shape_text(constant.shape));
  }
  for (const SharedBuffer& buffer : definition.shared) DUET_TRY(check_shape(definition, buffer, false));
  // Every expression is evaluated once at the defaults: unknown symbols, cycles and overflows show here.
  auto resolved = resolve_symbols(definition, {});
  if (!resolved) return failure(ErrorCode::kBadInput, "{}", resolved.error().message);
  const std::vector<int64_t>& symbols = *resolved;
  for (const SharedBuffer& buffer : definition.shared) DUET_TRY(tensor_bytes(definition, buffer, symbols));
  for (Method& method : definition.methods) {
    Status status = MethodChecker(definition, globals, symbols, method).check();
    if (!status) return failure(status.error().code, "method {}: {}", method.name, status.error().message);
    for (const TensorSpec& value : method.values) DUET_TRY(tensor_bytes(definition, value, symbols));
  }
  return {};
}

}  // namespace duet::model
