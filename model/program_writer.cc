// Writes a program definition as a file: fixed header, JSON header, aligned data.
#include <xxhash.h>

#include <cstddef>
#include <cstring>
#include <new>

#include "memory/part_file.h"
#include "model/program.h"
#include "model/program_header.h"

namespace duet::model {
namespace {

using Json = nlohmann::ordered_json;

Json shape_json(const Shape& shape) {
  Json json = Json::array();
  for (const Dim& dim : shape) json.push_back(dim.to_json());
  return json;
}

Json tensor_json(const TensorSpec& spec) {
  return {{"name", spec.name}, {"dtype", dtype_name(spec.dtype)}, {"shape", shape_json(spec.shape)}};
}

Json symbol_json(const Symbol& symbol) {
  Json json = {{"name", symbol.name}};
  switch (symbol.kind) {
    case Symbol::Kind::kLimit:
      json["kind"] = "limit";
      json["default"] = symbol.value.to_json();
      break;
    case Symbol::Kind::kDerived:
      json["kind"] = "derived";
      json["value"] = symbol.value.to_json();
      break;
    case Symbol::Kind::kDynamic:
      json["kind"] = "dynamic";
      break;
  }
  if (symbol.kind != Symbol::Kind::kDerived) {
    json["min"] = symbol.min.to_json();
    json["max"] = symbol.max.to_json();
  }
  if (!symbol.help.empty()) json["help"] = symbol.help;
  return json;
}

Json input_json(const InputSpec& input) {
  Json json = tensor_json(input);
  if (input.min_value) json["min_value"] = input.min_value->to_json();
  if (input.max_value) json["max_value"] = input.max_value->to_json();
  if (input.distinct) json["distinct"] = true;
  if (!input.sums_to.empty()) json["sums_to"] = input.sums_to;
  if (!input.help.empty()) json["help"] = input.help;
  return json;
}

Json refs_json(const ProgramDefinition& definition, const Method& method, const std::vector<ValueRef>& refs) {
  Json json = Json::array();
  for (ValueRef ref : refs)
    json.push_back(ref.space == ValueRef::Space::kNone ? Json() : Json(definition.spec(method, ref).name));
  return json;
}

Json method_json(const ProgramDefinition& definition, const Method& method) {
  Json json = {{"name", method.name},
               {"inputs", Json::array()},
               {"outputs", Json::array()},
               {"values", Json::array()},
               {"operators", Json::array()}};
  for (const InputSpec& input : method.inputs) json["inputs"].push_back(input_json(input));
  for (const MethodOutput& output : method.outputs)
    json["outputs"].push_back({{"name", output.name}, {"value", definition.spec(method, output.value).name}});
  for (size_t i = method.inputs.size(); i < method.values.size(); ++i)
    json["values"].push_back(tensor_json(method.values[i]));
  for (const Operation& operation : method.operations) {
    Json entry = {{"kind", operation.kind},
                  {"name", operation.name},
                  {"inputs", refs_json(definition, method, operation.inputs)},
                  {"outputs", refs_json(definition, method, operation.outputs)}};
    for (const auto& [name, value] : operation.attributes)
      std::visit([&](const auto& v) { entry["attributes"][name] = v; }, value);
    json["operators"].push_back(std::move(entry));
  }
  return json;
}

std::string checksum_text(std::span<const std::byte> data) {
  return fmt::format("{:016x}", XXH3_64bits(data.data(), data.size()));
}

// The JSON header, and the data in file order.
Json header_json(const ProgramDefinition& definition, std::vector<std::span<const std::byte>>& data) {
  uint64_t offset = 0;
  auto place = [&](Json& entry, std::span<const std::byte> bytes) {
    entry["offset"] = offset;
    entry["bytes"] = bytes.size();
    entry["checksum"] = checksum_text(bytes);
    data.push_back(bytes);
    offset = aligned(offset + bytes.size());
  };
  Json json = {{"producer", "duet " DUET_VERSION}, {"metadata", definition.metadata},
               {"symbols", Json::array()},         {"methods", Json::array()},
               {"shared", Json::array()},          {"sections", Json::array()},
               {"constants", Json::array()}};
  for (const Symbol& symbol : definition.symbols) json["symbols"].push_back(symbol_json(symbol));
  for (const Method& method : definition.methods) json["methods"].push_back(method_json(definition, method));
  for (const SharedBuffer& buffer : definition.shared) {
    Json entry = tensor_json(buffer);
    if (buffer.initial) entry["initial"] = *buffer.initial;
    json["shared"].push_back(std::move(entry));
  }
  for (const auto& [name, bytes] : definition.sections) {
    Json entry = {{"name", name}};
    place(entry, bytes);
    json["sections"].push_back(std::move(entry));
  }
  for (const Constant& constant : definition.constants) {
    Json entry = tensor_json(constant);
    if (constant.layout == Layout::kPanels) entry["layout"] = "panels";
    place(entry, constant.data);
    json["constants"].push_back(std::move(entry));
  }
  return json;
}

}  // namespace

FixedPart fixed_part(std::string_view header, uint32_t version) {
  FixedPart fixed{{}, version, header.size(), 0};
  std::memcpy(fixed.magic, kProgramMagic, sizeof fixed.magic);
  XXH3_state_t* state = XXH3_createState();
  if (!state) throw std::bad_alloc();
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, &fixed, offsetof(FixedPart, seal));
  XXH3_64bits_update(state, header.data(), header.size());
  fixed.seal = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return fixed;
}

Status write_program(const ProgramDefinition& definition, const std::string& path) {
  std::vector<std::span<const std::byte>> data;
  std::string header =
      header_json(definition, data).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  uint64_t header_bytes = header.size();
  if (header_bytes > kMaxHeaderBytes)
    return failure(ErrorCode::kBadInput, "{}: a header of {} bytes, expected at most {}", path, header_bytes,
                   kMaxHeaderBytes);
  DUET_ASSIGN(auto file, memory::PartFile::create(path));
  FixedPart fixed = fixed_part(header);
  DUET_TRY(file.write(&fixed, sizeof fixed));
  DUET_TRY(file.write(header.data(), header.size()));
  uint64_t written = sizeof fixed + header_bytes, offset = data_start(header_bytes);
  for (auto bytes : data) {
    static constexpr char kZeros[kSectionAlignment] = {};
    DUET_TRY(file.write(kZeros, offset - written));
    DUET_TRY(file.write(bytes.data(), bytes.size()));
    written = offset + bytes.size();
    offset = aligned(written);
  }
  return file.finish();
}

}  // namespace duet::model
