// Opens a program file: every offset, count, shape, dtype and reference is checked before anything uses it.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "model/header_json.h"
#include "model/program.h"
#include "model/program_header.h"

namespace duet::model {
namespace {

using Json = nlohmann::ordered_json;

// A JSON value and the way to it ("methods[1].operators[7].kind"), for messages. The first problem is kept;
// after it, accessors give harmless defaults, so that reading code needs no branches.
class Field {
 public:
  Field(const Json* json, std::string path, std::string* problem)
      : json_(json), path_(std::move(path)), problem_(problem) {}

  void report(const std::string& what) const {
    if (problem_->empty()) *problem_ = path_ + ": " + what;
  }
  bool failed() const { return !problem_->empty(); }
  bool has(const char* name) const { return json_ && json_->is_object() && json_->contains(name); }
  Field operator[](const char* name) const {
    if (!has(name)) {
      report(fmt::format("field \"{}\" is missing", name));
      return {nullptr, path_, problem_};
    }
    return {&json_->at(name), path_.empty() ? name : path_ + "." + name, problem_};
  }
  std::vector<Field> items() const {
    std::vector<Field> fields;
    if (!json_ || !json_->is_array()) {
      report("expected a list");
      return fields;
    }
    for (size_t i = 0; i < json_->size(); ++i)
      fields.push_back({&(*json_)[i], fmt::format("{}[{}]", path_, i), problem_});
    return fields;
  }
  std::string text() const {
    if (json_ && json_->is_string()) return json_->get<std::string>();
    report("expected a string");
    return "";
  }
  std::string name() const {
    std::string value = text();
    if (value.empty()) report("expected a name");
    return value;
  }
  uint64_t count() const {
    if (json_ && json_->is_number_unsigned()) return json_->get<uint64_t>();
    report("expected a whole number >= 0");
    return 0;
  }
  double number() const {
    if (json_ && json_->is_number()) return json_->get<double>();
    report("expected a number");
    return 0;
  }
  bool flag() const {
    if (json_ && json_->is_boolean()) return json_->get<bool>();
    report("expected true or false");
    return false;
  }
  bool is_null() const { return !json_ || json_->is_null(); }
  const Json* json() const { return json_; }

  Expression expression() const {
    if (!json_) return {};
    auto parsed = Expression::parse(*json_);
    if (parsed) return *parsed;
    report(parsed.error().message);
    return {};
  }

 private:
  const Json* json_;
  std::string path_;
  std::string* problem_;
};

template <class Spec>
void read_tensor(const Field& field, Spec& spec) {
  spec.name = field["name"].name();
  auto dtype = parse_dtype(field["dtype"].text());
  if (dtype)
    spec.dtype = *dtype;
  else
    field["dtype"].report(fmt::format("unknown dtype \"{}\"", field["dtype"].text()));
  for (const Field& dim : field["shape"].items()) {
    spec.shape.push_back(dim.expression());
    if (spec.shape.back().kind() > Expression::Kind::kSymbol || spec.shape.back().value() < 0)
      dim.report(fmt::format("{}, expected a whole number >= 0 or a symbol", spec.shape.back().to_string()));
  }
  if (spec.shape.size() > kMaxRank) field["shape"].report(fmt::format("more than {} dimensions", kMaxRank));
}

constexpr size_t kMostSymbols = 256;  // looked for one by one, for every dimension of every tensor

class Reader {
 public:
  Reader(std::span<const std::byte> data, const Json& json) : data_(data), root_(&json, "", &problem_) {}

  Result<ProgramDefinition> read() {
    definition_.metadata = root_["metadata"].is_null() ? Json::object() : *root_["metadata"].json();
    if (!definition_.metadata.is_object()) root_["metadata"].report("expected an object");
    for (const Field& field : root_["symbols"].items()) read_symbol(field);
    if (definition_.symbols.size() > kMostSymbols)
      root_["symbols"].report(fmt::format("more than {}", kMostSymbols));
    for (const Field& field : root_["shared"].items()) {
      SharedBuffer buffer;
      read_tensor(field, buffer);
      if (field.has("initial")) buffer.initial = field["initial"].number();
      define(field, buffer.name,
             {ValueRef::Space::kShared, static_cast<uint32_t>(definition_.shared.size())});
      definition_.shared.push_back(std::move(buffer));
    }
    for (const Field& field : root_["constants"].items()) read_constant(field);
    for (const Field& field : root_["sections"].items()) read_section(field);
    for (const Field& field : root_["methods"].items()) {
      if (!problem_.empty()) break;
      read_method(field);
    }
    if (!problem_.empty()) return failure(ErrorCode::kBadInput, "{}", problem_);
    return std::move(definition_);
  }

 private:
  void define(const Field& field, const std::string& name, ValueRef ref) {
    if (!globals_.emplace(name, ref).second) field.report(fmt::format("\"{}\" is defined twice", name));
  }

  void read_symbol(const Field& field) {
    Symbol symbol;
    symbol.name = field["name"].name();
    std::string kind = field["kind"].text();
    if (kind == "derived") {
      symbol.kind = Symbol::Kind::kDerived;
      symbol.value = field["value"].expression();
    } else {
      if (kind != "limit" && kind != "dynamic") field["kind"].report("expected limit, derived or dynamic");
      symbol.kind = kind == "limit" ? Symbol::Kind::kLimit : Symbol::Kind::kDynamic;
      symbol.min = field["min"].expression();
      symbol.max = field["max"].expression();
      if (kind == "limit") symbol.value = field["default"].expression();
    }
    if (field.has("help")) symbol.help = field["help"].text();
    definition_.symbols.push_back(std::move(symbol));
  }

  std::span<const std::byte> read_range(const Field& field) {
    uint64_t offset = field["offset"].count(), bytes = field["bytes"].count();
    if (offset % kSectionAlignment != 0)
      field["offset"].report(fmt::format("{} is not a multiple of {}", offset, kSectionAlignment));
    if (offset > data_.size() || bytes > data_.size() - offset)
      field.report(
          fmt::format("bytes {} to {}+{} lie outside the file, which has {} bytes of data (is it cut short?)",
                      offset, offset, bytes, data_.size()));
    return field.failed() ? std::span<const std::byte>() : data_.subspan(offset, bytes);
  }

  uint64_t read_checksum(const Field& field) {
    std::string text = field["checksum"].text();
    uint64_t value = 0;
    for (char c : text) {
      auto digit = std::string_view("0123456789abcdef").find(c);
      if (digit == std::string_view::npos) field["checksum"].report("expected 16 hexadecimal digits");
      value = value << 4 | (digit & 15);
    }
    if (text.size() != 16) field["checksum"].report("expected 16 hexadecimal digits");
    return value;
  }

  void read_constant(const Field& field) {
    Constant constant;
    read_tensor(field, constant);
    if (field.has("layout")) {
      if (field["layout"].text() != "panels") field["layout"].report("expected \"panels\"");
      constant.layout = Layout::kPanels;
    }
    constant.data = read_range(field);
    constant.checksum = read_checksum(field);
    auto expected = constant_bytes(constant, constant.layout);
    if (!expected || *expected != constant.data.size())
      field["bytes"].report(
          fmt::format("{} bytes for {} {}, expected {}", constant.data.size(), dtype_name(constant.dtype),
                      shape_text(constant.shape),
                      expected ? std::to_string(*expected) : "a fixed shape of at most 2^56 bytes"));
    define(field, constant.name,
           {ValueRef::Space::kConstant, static_cast<uint32_t>(definition_.constants.size())});
    definition_.constants.push_back(std::move(constant));
  }

  void read_section(const Field& field) {
    std::string name = field["name"].name();
    auto bytes = read_range(field);
    uint64_t checksum = read_checksum(field);
    uint64_t actual = field.failed() ? 0 : XXH3_64bits(bytes.data(), bytes.size());
    if (!field.failed() && actual != checksum)
      field["checksum"].report(fmt::format(
          "section \"{}\" is damaged: its checksum is {:016x}, expected {:016x}", name, actual, checksum));
    if (!definition_.sections.emplace(name, bytes).second)
      field.report(fmt::format("section \"{}\" stands twice", name));
  }

  void read_input(const Field& field, Method& method) {
    InputSpec input;
    read_tensor(field, input);
    if (field.has("min_value")) input.min_value = field["min_value"].expression();
    if (field.has("max_value")) input.max_value = field["max_value"].expression();
    if (field.has("distinct")) input.distinct = field["distinct"].flag();
    if (field.has("sums_to")) input.sums_to = field["sums_to"].name();
    if (field.has("help")) input.help = field["help"].text();
    method.values.push_back(input);
    method.inputs.push_back(std::move(input));
  }

  std::vector<ValueRef> read_refs(const Field& field,
                                  const std::unordered_map<std::string, ValueRef>& locals) {
    std::vector<ValueRef> refs;
    for (const Field& item : field.items())
      refs.push_back(item.is_null() ? ValueRef() : resolve(item, locals));
    return refs;
  }

  ValueRef resolve(const Field& field, const std::unordered_map<std::string, ValueRef>& locals) {
    std::string name = field.text();
    if (auto local = locals.find(name); local != locals.end()) return local->second;
    if (auto global = globals_.find(name); global != globals_.end()) return global->second;
    field.report(fmt::format("unknown tensor \"{}\"", name));
    return {};
  }

  void read_method(const Field& field) {
    Method method;
    method.name = field["name"].name();
    for (const Field& input : field["inputs"].items()) read_input(input, method);
    for (const Field& value : field["values"].items()) {
      TensorSpec spec;
      read_tensor(value, spec);
      method.values.push_back(std::move(spec));
    }
    std::unordered_map<std::string, ValueRef> locals;
    for (size_t i = 0; i < method.values.size(); ++i)
      if (!locals.emplace(method.values[i].name, ValueRef{ValueRef::Space::kValue, static_cast<uint32_t>(i)})
               .second)
        field.report(fmt::format("value \"{}\" is defined twice", method.values[i].name));
    for (const Field& output : field["outputs"].items())
      method.outputs.push_back({output["name"].name(), resolve(output["value"], locals)});
    for (const Field& entry : field["operators"].items()) {
      Operation operation;
      operation.kind = entry["kind"].name();
      operation.name = entry["name"].text();
      operation.inputs = read_refs(entry["inputs"], locals);
      operation.outputs = read_refs(entry["outputs"], locals);
      if (entry.has("attributes")) read_attributes(entry["attributes"], operation.attributes);
      method.operations.push_back(std::move(operation));
    }
    definition_.methods.push_back(std::move(method));
  }

  static void read_attributes(const Field& field, Attributes& attributes) {
    if (!field.json() || !field.json()->is_object()) return field.report("expected an object");
    auto too_large = [](const Json& v) { return v.is_number_unsigned() && v.get<uint64_t>() > INT64_MAX; };
    for (const auto& [name, value] : field.json()->items()) {
      if (too_large(value) || (value.is_array() && std::any_of(value.begin(), value.end(), too_large)))
        return field.report(fmt::format("attribute \"{}\" is too large", name));
      bool whole = value.is_array() && std::all_of(value.begin(), value.end(),
                                                   [](const Json& v) { return v.is_number_integer(); });
      bool texts = value.is_array() &&
                   std::all_of(value.begin(), value.end(), [](const Json& v) { return v.is_string(); });
      if (value.is_number_integer())
        attributes[name] = value.get<int64_t>();
      else if (value.is_number())
        attributes[name] = value.get<double>();
      else if (value.is_string())
        attributes[name] = value.get<std::string>();
      else if (whole)
        attributes[name] = value.get<std::vector<int64_t>>();
      else if (texts)
        attributes[name] = value.get<std::vector<std::string>>();
      else
        field.report(
            fmt::format("attribute \"{}\": expected a number, a string or a list of one of them", name));
    }
  }

  std::span<const std::byte> data_;
  std::string problem_;
  Field root_;
  ProgramDefinition definition_;
  std::unordered_map<std::string, ValueRef> globals_;
};

Result<std::string_view> checked_header(std::span<const std::byte> file) {
  if (file.size() < sizeof kProgramMagic ||
      std::memcmp(file.data(), kProgramMagic, sizeof kProgramMagic) != 0)
    return failure(ErrorCode::kBadInput,
                   "not a Duet program: it does not begin with \"DUET\" "
                   "(make one from a model directory with `duet convert DIR -o FILE`)");
  constexpr std::string_view kStateFile = "DUETSTAT";
  if (std::string_view(reinterpret_cast<const char*>(file.data()), file.size()).starts_with(kStateFile))
    return failure(ErrorCode::kBadInput, "is a state file of `duet call --save-state`, expected a program");
  FixedPart fixed{};
  std::memcpy(&fixed, file.data(), std::min<size_t>(file.size(), sizeof fixed));
  if (file.size() >= offsetof(FixedPart, header_bytes) && fixed.version != kProgramVersion)
    return failure(ErrorCode::kBadInput,
                   "program version {}, this Duet reads version {}: run `duet convert` on the model again",
                   fixed.version, kProgramVersion);
  if (file.size() < sizeof fixed)
    return failure(ErrorCode::kBadInput, "{} bytes, expected {} and a header: the file is cut short",
                   file.size(), sizeof fixed);
  if (fixed.header_bytes > kMaxHeaderBytes || fixed.header_bytes > file.size() - sizeof fixed)
    return failure(ErrorCode::kBadInput,
                   "header of {} bytes in a file of {} bytes: the file is cut short or damaged",
                   fixed.header_bytes, file.size());
  std::string_view header(reinterpret_cast<const char*>(file.data()) + sizeof fixed, fixed.header_bytes);
  if (uint64_t seal = fixed_part(header).seal; seal != fixed.seal)
    return failure(ErrorCode::kBadInput,
                   "the header is damaged: its checksum is {:016x}, expected {:016x}; copy or convert the "
                   "program again",
                   seal, fixed.seal);
  return header;
}

Result<ProgramDefinition> parse_program(std::span<const std::byte> file) {
  DUET_ASSIGN(std::string_view header, checked_header(file));
  DUET_ASSIGN(Json json, HeaderJson::parse(header));
  uint64_t start = std::min<uint64_t>(data_start(header.size()), file.size());
  return Reader(file.subspan(start), json).read();
}

}  // namespace

Result<std::shared_ptr<const Program>> Program::open(const std::string& path, LoadMode mode) {
  try {
    DUET_ASSIGN(auto file, memory::MappedFile::open(path, mode));
    auto definition = parse_program(file.bytes());
    Status checked = definition ? check_program(*definition) : tl::make_unexpected(definition.error());
    DUET_TRY(file.check_whole());  // before anything is said about what it holds
    if (!checked) return failure(checked.error().code, "{}: {}", path, checked.error().message);
    return std::make_shared<const Program>(std::move(file), std::move(*definition));
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "{}: out of memory while loading", path);
  } catch (const std::exception& error) {  // of the JSON library
    return failure(ErrorCode::kBadInput, "{}: {}", path, error.what());
  }
}

}  // namespace duet::model
