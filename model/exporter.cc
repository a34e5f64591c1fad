#include "model/exporter.h"

#include <algorithm>

#include "model/operators/operator.h"

namespace duet::model {

std::string MethodBuilder::add_value(TensorSpec spec) {
  std::string name = spec.name;
  if (name.empty() || !values_.emplace(name, static_cast<uint32_t>(method_.values.size())).second)
    exporter_.report(
        fmt::format("method {}: value \"{}\" is defined twice or has no name", method_.name, name));
  method_.values.push_back(std::move(spec));
  return name;
}

std::string MethodBuilder::input(InputSpec spec) {
  if (!method_.operations.empty())
    exporter_.report(
        fmt::format("method {}: input \"{}\" comes after the first operator", method_.name, spec.name));
  method_.inputs.push_back(spec);
  return add_value(std::move(spec));
}

std::string MethodBuilder::input(const std::string& name, DType dtype, Shape shape) {
  InputSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return input(std::move(spec));
}

ValueRef MethodBuilder::find(const std::string& tensor) {
  if (tensor.empty()) return {};
  if (auto local = values_.find(tensor); local != values_.end())
    return {ValueRef::Space::kValue, local->second};
  if (auto constant = exporter_.definition_.find_constant(tensor))
    return {ValueRef::Space::kConstant, *constant};
  if (auto shared = exporter_.definition_.find_shared(tensor)) {
    buffers_used_.insert(*shared);
    return {ValueRef::Space::kShared, *shared};
  }
  exporter_.report(fmt::format("method {}: unknown tensor or buffer \"{}\"", method_.name, tensor));
  return {};
}

std::vector<std::string> MethodBuilder::call_all(const std::string& kind, const std::string& name,
                                                 std::vector<std::string> inputs, Attributes attributes,
                                                 const std::string& result) {
  Operation operation;
  operation.kind = kind;
  operation.name = name;
  operation.attributes = std::move(attributes);
  std::vector<OperandSpec> operands;
  for (const std::string& input : inputs) {
    ValueRef ref = find(input);
    operation.inputs.push_back(ref);
    OperandSpec operand;
    if (ref.space != ValueRef::Space::kNone) operand.spec = &exporter_.definition_.spec(method_, ref);
    operand.writable = ref.space == ValueRef::Space::kShared;
    if (ref.space == ValueRef::Space::kConstant)
      operand.constant = &exporter_.definition_.constants[ref.index];
    operands.push_back(operand);
  }
  if (!exporter_.problem_.empty()) return std::vector<std::string>(4, result);
  auto op = make_operator(kind, operation.attributes);
  auto specs = op ? (*op)->infer(operands) : tl::make_unexpected(op.error());
  if (!specs) {
    exporter_.report(
        fmt::format("method {}: {} \"{}\": {}", method_.name, kind, name, specs.error().message));
    return std::vector<std::string>(4, result);
  }
  std::vector<std::string> results;
  for (size_t i = 0; i < specs->size(); ++i) {
    (*specs)[i].name = (result.empty() ? name : result) + (specs->size() > 1 ? fmt::format(".{}", i) : "");
    operation.outputs.push_back({ValueRef::Space::kValue, static_cast<uint32_t>(method_.values.size())});
    results.push_back(add_value(std::move((*specs)[i])));
  }
  method_.operations.push_back(std::move(operation));
  return results;
}

std::string MethodBuilder::call(const std::string& kind, const std::string& name,
                                std::vector<std::string> inputs, Attributes attributes,
                                const std::string& result) {
  auto results = call_all(kind, name, std::move(inputs), std::move(attributes), result);
  return results.empty() ? "" : results[0];
}

void MethodBuilder::output(const std::string& name, const std::string& tensor) {
  method_.outputs.push_back({name, find(tensor)});
}

void MultiEntryPointExporter::report(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

void MultiEntryPointExporter::limit(const std::string& name, Expression min, Expression max,
                                    Expression standard, const std::string& help) {
  definition_.symbols.push_back(
      {name, Symbol::Kind::kLimit, std::move(min), std::move(max), std::move(standard), help});
}
void MultiEntryPointExporter::derived(const std::string& name, Expression value) {
  definition_.symbols.push_back({name, Symbol::Kind::kDerived, 1, 1, std::move(value), ""});
}
void MultiEntryPointExporter::dynamic(const std::string& name, Expression min, Expression max,
                                      const std::string& help) {
  definition_.symbols.push_back({name, Symbol::Kind::kDynamic, std::move(min), std::move(max), 1, help});
}

std::span<const std::byte> MultiEntryPointExporter::keep(std::vector<std::byte> bytes) {
  bytes_.push_back(std::move(bytes));
  return bytes_.back();
}

namespace {
template <class T>
std::vector<std::byte> bytes_of(const T& values) {  // also of none
  auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}
Shape fixed_shape(const std::vector<int64_t>& dims) { return Shape(dims.begin(), dims.end()); }
}  // namespace

void MultiEntryPointExporter::constant(const std::string& name, std::vector<float> values,
                                       std::vector<int64_t> dims, Layout layout) {
  Constant constant;
  constant.name = name;
  constant.dtype = DType::kF32;
  constant.shape = fixed_shape(dims);
  constant.layout = layout;
  auto bytes = constant_bytes(constant, layout);
  auto plain = constant_bytes(constant, Layout::kRows);
  if (!bytes || *plain != values.size() * sizeof(float) || (layout == Layout::kPanels && dims.size() != 2))
    return report(
        fmt::format("constant {}: {} values do not fit {}", name, values.size(), shape_text(constant.shape)));
  std::vector<std::byte> data;
  if (layout == Layout::kRows) {
    data = bytes_of(values);
  } else {
    data.resize(*bytes);
    auto* out = reinterpret_cast<float*>(data.data());
    int64_t k = dims[1];
    for (int64_t i = 0; i < dims[0]; ++i)
      for (int64_t j = 0; j < k; ++j)
        out[(i / kPanelWidth * k + j) * kPanelWidth + i % kPanelWidth] =
            values[static_cast<size_t>(i * k + j)];
  }
  constant.data = keep(std::move(data));
  definition_.constants.push_back(std::move(constant));
}

void MultiEntryPointExporter::constant(const std::string& name, const std::vector<int32_t>& values,
                                       std::vector<int64_t> dims) {
  Constant constant;
  constant.name = name;
  constant.dtype = DType::kI32;
  constant.shape = fixed_shape(dims);
  constant.data = keep(bytes_of(values));
  definition_.constants.push_back(std::move(constant));
}

void MultiEntryPointExporter::buffer(const std::string& name, DType dtype, Shape shape,
                                     std::optional<double> initial) {
  SharedBuffer buffer;
  buffer.name = name;
  buffer.dtype = dtype;
  buffer.shape = std::move(shape);
  buffer.initial = initial;
  definition_.shared.push_back(std::move(buffer));
}

void MultiEntryPointExporter::register_shared(const std::string& name) { registered_.insert(name); }
void MultiEntryPointExporter::register_shared_prefix(const std::string& prefix) {
  registered_prefixes_.insert(prefix);
}

MethodBuilder& MultiEntryPointExporter::method(const std::string& name) {
  methods_.push_back(std::unique_ptr<MethodBuilder>(new MethodBuilder(*this, name)));
  return *methods_.back();
}

void MultiEntryPointExporter::constant_method(const std::string& name, const std::string& constant) {
  method(name).output("value", constant);
}

void MultiEntryPointExporter::section(const std::string& name, std::string bytes) {
  if (!definition_.sections.emplace(name, keep(bytes_of(bytes))).second)
    report(fmt::format("section {} is given twice", name));
}

Status MultiEntryPointExporter::check_registrations() const {
  for (const std::string& name : registered_)
    if (!definition_.find_shared(name))
      return failure(ErrorCode::kBadInput, "register_shared: no buffer \"{}\"", name);
  for (const std::string& prefix : registered_prefixes_)
    if (std::none_of(definition_.shared.begin(), definition_.shared.end(),
                     [&](const SharedBuffer& b) { return b.name.starts_with(prefix); }))
      return failure(ErrorCode::kBadInput, "register_shared_prefix: no buffer's name begins with \"{}\"",
                     prefix);
  for (uint32_t i = 0; i < definition_.shared.size(); ++i) {
    const std::string& name = definition_.shared[i].name;
    bool shared =
        registered_.count(name) || std::any_of(registered_prefixes_.begin(), registered_prefixes_.end(),
                                               [&](const std::string& p) { return name.starts_with(p); });
    std::vector<std::string> users;
    for (const auto& method : methods_)
      if (method->buffers_used_.count(i)) users.push_back(method->method_.name);
    if (users.size() > 1 && !shared)
      return failure(ErrorCode::kBadInput,
                     "buffer \"{}\" is used by {} methods ({}) but not registered as shared", name,
                     users.size(), fmt::join(users, ", "));
  }
  return {};
}

Method MultiEntryPointExporter::init_method() const {
  Method init;
  init.name = "et_module_init";
  for (uint32_t i = 0; i < definition_.shared.size(); ++i) {
    if (!definition_.shared[i].initial) continue;
    Operation fill;
    fill.kind = "fill";
    fill.name = definition_.shared[i].name;
    fill.inputs = {{ValueRef::Space::kShared, i}};
    fill.attributes["value"] = *definition_.shared[i].initial;
    init.operations.push_back(std::move(fill));
  }
  return init;
}

void MultiEntryPointExporter::example(const std::string& method, Example inputs) {
  examples_.emplace_back(method, std::move(inputs));
}

namespace {

// The sizes that an example's inputs give to dynamic symbols, each checked against its bounds.
class ExampleSizes {
 public:
  static Result<ExampleSizes> create(const ProgramDefinition& definition) {
    ExampleSizes sizes(definition);
    DUET_ASSIGN(sizes.at_defaults_, resolve_symbols(definition, {}));
    return sizes;
  }

  Status check(const Dim& declared, int64_t given) {
    if (declared.kind() == Expression::Kind::kInteger)
      return given == declared.value() ? Status()
                                       : failure(ErrorCode::kBadInput, "expected {}", declared.value());
    size_t index = definition_.symbol_index(declared.symbol());
    const Symbol& symbol = definition_.symbols[index];
    int64_t most = at_defaults_[index];
    if (symbol.kind != Symbol::Kind::kDynamic)
      return given == most ? Status() : failure(ErrorCode::kBadInput, "expected {} = {}", symbol.name, most);
    DUET_ASSIGN(int64_t least, evaluate(definition_, symbol.min, at_defaults_));
    if (given < least || given > most)
      return failure(ErrorCode::kBadInput, "{} is outside its bounds, expected {} to {}", symbol.name, least,
                     most);
    auto [first, is_new] = bound_.emplace(symbol.name, given);
    if (!is_new && first->second != given)
      return failure(ErrorCode::kBadInput, "{} is {} in an earlier input", symbol.name, first->second);
    return {};
  }

 private:
  explicit ExampleSizes(const ProgramDefinition& definition) : definition_(definition) {}

  const ProgramDefinition& definition_;
  std::vector<int64_t> at_defaults_;
  std::map<std::string, int64_t> bound_;
};

std::string input_names(const Method& method) {
  std::vector<std::string> names;
  for (const InputSpec& input : method.inputs) names.push_back(input.name);
  return names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

Status MultiEntryPointExporter::check_example(const std::string& name, const Example& inputs) const {
  const Method* method = definition_.find_method(name);
  if (!method)
    return failure(ErrorCode::kBadInput, "example of method \"{}\": there is no such method", name);
  for (const auto& [input, tensor] : inputs)
    if (std::none_of(method->inputs.begin(), method->inputs.end(),
                     [&](const InputSpec& spec) { return spec.name == input; }))
      return failure(ErrorCode::kBadInput,
                     "example of method {}: surplus argument \"{}\"; its inputs are: {}", name, input,
                     input_names(*method));
  DUET_ASSIGN(ExampleSizes sizes, ExampleSizes::create(definition_));
  for (const InputSpec& spec : method->inputs) {
    auto given = inputs.find(spec.name);
    if (given == inputs.end())
      return failure(ErrorCode::kBadInput,
                     "example of method {}: missing argument \"{}\"; its inputs are: {}", name, spec.name,
                     input_names(*method));
    const auto& [dtype, dims] = given->second;
    if (dtype != spec.dtype)
      return failure(ErrorCode::kBadInput, "example of method {}: input {} is {}, expected {}", name,
                     spec.name, dtype_name(dtype), dtype_name(spec.dtype));
    if (dims.size() != spec.shape.size())
      return failure(ErrorCode::kBadInput, "example of method {}: input {} has shape [{}], expected {}", name,
                     spec.name, fmt::join(dims, ", "), shape_text(spec.shape));
    for (size_t axis = 0; axis < dims.size(); ++axis)
      if (Status status = sizes.check(spec.shape[axis], dims[axis]); !status)
        return failure(ErrorCode::kBadInput,
                       "example of method {}: input {} has shape [{}], where {} ({}): {}", name, spec.name,
                       fmt::join(dims, ", "), dims[axis], spec.shape[axis].to_string(),
                       status.error().message);
  }
  return {};
}

Result<const ProgramDefinition*> MultiEntryPointExporter::finish() {
  if (!problem_.empty()) return failure(ErrorCode::kBadInput, "{}", problem_);
  DUET_TRY(check_registrations());
  definition_.methods.clear();
  definition_.methods.push_back(init_method());
  for (const auto& method : methods_) definition_.methods.push_back(method->method_);
  DUET_TRY(check_program(definition_));
  for (const auto& [method, inputs] : examples_) DUET_TRY(check_example(method, inputs));
  return &definition_;
}

Status MultiEntryPointExporter::save(const std::string& path) {
  DUET_TRY(finish());
  return write_program(definition_, path);
}

}  // namespace duet::model
