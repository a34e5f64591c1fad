// duet info: what a program is, what it wants and gives, and how large it is. Reads the header only.
#include "runner/command_line.h"
#include "runner/report.h"

namespace duet::runner {
namespace {

using Json = nlohmann::ordered_json;
using model::Expression;
using model::ProgramDefinition;
using model::Symbol;

constexpr const char* kHelp = "Tells what a program is: model, sizes, limits, methods, buffers, sections.";

constexpr const char* kFooter = R"(Examples:
  duet info
  duet info en-de.duet --json | jq .metadata.licence)";

struct Options {
  ProgramOption program;
  bool json = false;
};

struct Sizes {
  uint64_t weights_bytes = 0;  // constants as stored, padding to panels included
  uint64_t parameters =
      0;  // numbers of the checkpoint: without the position tables, which are computed at export
};

Sizes sizes_of(const ProgramDefinition& definition) {
  Sizes sizes;
  for (const model::Constant& constant : definition.constants) {
    sizes.weights_bytes += constant.data.size();
    uint64_t elements = 1;
    for (const model::Dim& dim : constant.shape) elements *= static_cast<uint64_t>(dim.value());
    if (constant.name.find("positions") == std::string::npos) sizes.parameters += elements;
  }
  return sizes;
}

// An expression's value when every limit has its default; null when it cannot be computed.
Json at_defaults(const ProgramDefinition& definition, const Expression& expression) {
  auto values = model::resolve_symbols(definition, {});
  if (!values) return nullptr;
  auto value = model::evaluate(definition, expression, *values);
  return value ? Json(*value) : Json(nullptr);
}

// --- JSON

Json tensor_json(const model::TensorSpec& spec) {
  Json shape = Json::array();
  for (const model::Dim& dim : spec.shape) shape.push_back(dim.to_json());
  return {{"name", spec.name}, {"dtype", model::dtype_name(spec.dtype)}, {"shape", shape}};
}

Json input_json(const model::InputSpec& spec) {
  Json json = tensor_json(spec);
  if (spec.min_value) json["min_value"] = spec.min_value->to_json();
  if (spec.max_value) json["max_value"] = spec.max_value->to_json();
  if (spec.distinct) json["distinct"] = true;
  if (!spec.sums_to.empty()) json["sums_to"] = spec.sums_to;
  json["help"] = spec.help;
  return json;
}

// Its values are numbers where they follow from the defaults of all limits; what was written stands under
// "expressions".
Json symbol_json(const ProgramDefinition& definition, const Symbol& symbol) {
  Json json = {{"name", symbol.name}}, expressions = Json::object();
  auto add = [&](const char* key, const Expression& expression) {
    json[key] = at_defaults(definition, expression);
    if (expression.kind() != Expression::Kind::kInteger) expressions[key] = expression.to_string();
  };
  if (symbol.kind == Symbol::Kind::kDerived) {
    add("value", symbol.value);
  } else {
    if (symbol.kind == Symbol::Kind::kLimit) add("default", symbol.value);
    add("min", symbol.min);
    add("max", symbol.max);
  }
  if (!expressions.empty()) json["expressions"] = std::move(expressions);
  json["help"] = symbol.help;
  return json;
}

Json symbols_json(const ProgramDefinition& definition, Symbol::Kind kind) {
  Json json = Json::array();
  for (const Symbol& symbol : definition.symbols)
    if (symbol.kind == kind) json.push_back(symbol_json(definition, symbol));
  return json;
}

Json method_json(const ProgramDefinition& definition, const model::Method& method) {
  Json json = {{"name", method.name},
               {"operators", method.operations.size()},
               {"inputs", Json::array()},
               {"outputs", Json::array()}};
  for (const model::InputSpec& input : method.inputs) json["inputs"].push_back(input_json(input));
  for (const model::MethodOutput& output : method.outputs) {
    Json tensor = tensor_json(definition.spec(method, output.value));
    tensor["name"] = output.name;
    json["outputs"].push_back(std::move(tensor));
  }
  return json;
}

Json info_json(const model::Program& program) {
  const ProgramDefinition& definition = program.definition();
  Sizes sizes = sizes_of(definition);
  Json json = {{"program", program.path()},
               {"file_bytes", program.file_bytes()},
               {"weights_bytes", sizes.weights_bytes},
               {"parameters", sizes.parameters},
               {"constants", definition.constants.size()},
               {"metadata", definition.metadata},
               {"limits", symbols_json(definition, Symbol::Kind::kLimit)},
               {"derived", symbols_json(definition, Symbol::Kind::kDerived)},
               {"dynamic", symbols_json(definition, Symbol::Kind::kDynamic)},
               {"methods", Json::array()},
               {"shared", Json::array()},
               {"sections", Json::array()}};
  for (const model::Method& method : definition.methods)
    json["methods"].push_back(method_json(definition, method));
  for (const model::SharedBuffer& buffer : definition.shared) {
    Json tensor = tensor_json(buffer);
    if (buffer.initial) tensor["initial"] = *buffer.initial;
    json["shared"].push_back(std::move(tensor));
  }
  for (const auto& [name, bytes] : definition.sections)
    json["sections"].push_back({{"name", name}, {"bytes", bytes.size()}});
  return json;
}

// --- Text

std::string tensor_text(const model::TensorSpec& spec) {
  return fmt::format("{}{}", model::dtype_name(spec.dtype), printable(model::shape_text(spec.shape)));
}

// "0 .. slots + -1, distinct, sum source_batch"
std::string bounds_text(const model::InputSpec& spec) {
  std::string text;
  if (spec.min_value || spec.max_value)
    text = fmt::format("{} .. {}", spec.min_value ? spec.min_value->to_string() : "",
                       spec.max_value ? spec.max_value->to_string() : "");
  if (spec.distinct) text += text.empty() ? "distinct" : ", distinct";
  if (!spec.sums_to.empty()) text += (text.empty() ? "sum is " : ", sum is ") + spec.sums_to;
  return printable(text);
}

std::string method_text(const ProgramDefinition& definition, const model::Method& method) {
  std::string text =
      fmt::format("\nmethod {}: {} operators\n", printable(method.name), method.operations.size());
  if (method.inputs.empty() && method.outputs.empty()) return text;
  Table table({{""}, {"name"}, {"type"}, {"elements"}, {"meaning"}});
  for (const model::InputSpec& input : method.inputs)
    table.add({"in", printable(input.name), tensor_text(input), bounds_text(input), printable(input.help)});
  for (const model::MethodOutput& output : method.outputs)
    table.add({"out", printable(output.name), tensor_text(definition.spec(method, output.value)), "", ""});
  return text + table.text("  ");
}

std::string value_text(const ProgramDefinition& definition, const Expression& expression) {
  Json value = at_defaults(definition, expression);
  return value.is_null() ? "?" : value.dump();
}

// Numbers in the first tables; the formulas that some of them come from, which are long, in one of their own.
std::string symbols_text(const ProgramDefinition& definition) {
  using enum Table::Align;
  Table limits({{"limit"}, {"default", kRight}, {"least", kRight}, {"most", kRight}, {"meaning"}});
  Table calls({{"size of a call"}, {"least", kRight}, {"most", kRight}, {"meaning"}});
  Table formulas({{"formula of"}, {""}, {""}});
  for (const Symbol& symbol : definition.symbols) {
    std::string name = printable(symbol.name), help = printable(symbol.help),
                value = value_text(definition, symbol.value), min = value_text(definition, symbol.min),
                max = value_text(definition, symbol.max);
    auto add_formula = [&](const char* what, const Expression& expression) {
      if (expression.kind() != Expression::Kind::kInteger)
        formulas.add({name, what, printable(expression.to_string())});
    };
    if (symbol.kind == Symbol::Kind::kLimit) limits.add({name, value, min, max, help});
    if (symbol.kind == Symbol::Kind::kDynamic) calls.add({name, min, max, help});
    if (symbol.kind == Symbol::Kind::kLimit) add_formula("default", symbol.value);
    if (symbol.kind == Symbol::Kind::kDerived) add_formula("value", symbol.value);
    if (symbol.kind != Symbol::Kind::kDerived) {
      add_formula("least", symbol.min);
      add_formula("most", symbol.max);
    }
  }
  std::string text;
  if (!limits.empty() || !calls.empty())
    text += "\nChosen when a session is made; numbers hold while every limit has its default.\n";
  for (const Table* table : {&limits, &calls, &formulas})
    if (!table->empty()) text += table->text("  ") + (table == &formulas ? "" : "\n");
  return text;
}

std::string info_text(const model::Program& program) {
  const ProgramDefinition& definition = program.definition();
  Sizes sizes = sizes_of(definition);
  Table facts({{"program"}, {printable(program.path())}});
  facts.add({"file bytes", with_commas(program.file_bytes())});
  facts.add({"weight bytes", fmt::format("{} in {} constants", with_commas(sizes.weights_bytes),
                                         definition.constants.size())});
  facts.add({"parameters", with_commas(sizes.parameters) + ", computed position tables not counted"});
  for (const auto& [name, value] : definition.metadata.items())
    facts.add({printable(name), printable(value.is_string() ? value.get<std::string>() : value.dump())});
  std::string text = facts.text() + symbols_text(definition);
  for (const model::Method& method : definition.methods) text += method_text(definition, method);
  if (!definition.shared.empty()) {
    Table shared({{"shared buffer"}, {"type"}, {"starts as"}});
    for (const model::SharedBuffer& buffer : definition.shared)
      shared.add({printable(buffer.name), tensor_text(buffer),
                  buffer.initial ? fmt::format("{}", *buffer.initial) : "0"});
    text += "\n" + shared.text();
  }
  if (!definition.sections.empty()) {
    Table sections({{"section"}, {"bytes", Table::Align::kRight}});
    for (const auto& [name, bytes] : definition.sections)
      sections.add({printable(name), with_commas(bytes.size())});
    text += "\n" + sections.text();
  }
  return text;
}

Result<int> run(const Options& options) {
  DUET_ASSIGN(auto program, options.program.open());
  DUET_TRY(options.json ? print_json(info_json(*program)) : print(info_text(*program)));
  return 0;
}

}  // namespace

void add_info_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("info", kHelp);
  command->footer(kFooter);
  options->program.add_to(*command);
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
