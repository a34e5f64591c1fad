#include "runner/state_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "model/header_json.h"
#include "model/program_header.h"
#include "runner/report.h"
#include "runner/whole_file.h"

namespace duet::runner {
namespace {

using Json = nlohmann::ordered_json;
using model::ProgramDefinition;
using model::Session;

constexpr uint64_t kChecksumBytes = 8;
constexpr size_t kChunkBytes = size_t{1} << 20;

// XXH3-64 of bytes that come piece by piece.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    XXH3_64bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  // Numbers and texts such that no two lists of them give the same bytes.
  void add(uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }
  void add(std::string_view text) {
    add(uint64_t{text.size()});
    add(std::as_bytes(std::span(text)));
  }
  uint64_t digest() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

void add_tensor(Hasher& hash, const model::TensorSpec& spec) {
  hash.add(std::string_view(spec.name));
  hash.add(model::dtype_name(spec.dtype));
  hash.add(model::shape_text(spec.shape));
}

void add_refs(Hasher& hash, const std::vector<model::ValueRef>& refs) {
  hash.add(uint64_t{refs.size()});
  for (model::ValueRef ref : refs) {
    hash.add(static_cast<uint64_t>(ref.space));
    hash.add(uint64_t{ref.index});
  }
}

void add_method(Hasher& hash, const model::Method& method) {
  hash.add(std::string_view(method.name));
  hash.add(uint64_t{method.inputs.size()});
  for (const model::InputSpec& input : method.inputs) {
    hash.add(input.min_value ? input.min_value->to_string() : "");
    hash.add(input.max_value ? input.max_value->to_string() : "");
    hash.add(uint64_t{input.distinct});
    hash.add(std::string_view(input.sums_to));
  }
  hash.add(uint64_t{method.values.size()});
  for (const model::TensorSpec& value : method.values) add_tensor(hash, value);
  hash.add(uint64_t{method.outputs.size()});
  for (const model::MethodOutput& output : method.outputs) {
    hash.add(std::string_view(output.name));
    add_refs(hash, {output.value});
  }
  hash.add(uint64_t{method.operations.size()});
  for (const model::Operation& operation : method.operations) {
    hash.add(std::string_view(operation.kind));
    add_refs(hash, operation.inputs);
    add_refs(hash, operation.outputs);
    hash.add(uint64_t{operation.attributes.size()});
    for (const auto& [name, value] : operation.attributes) {
      hash.add(std::string_view(name));
      Json json;
      std::visit([&](const auto& v) { json = v; }, value);
      hash.add(std::string_view(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
    }
  }
}

std::string hex(uint64_t number) { return fmt::format("{:016x}", number); }

// What the file's header must say for this session.
Json expected_header(Session& session) {
  const ProgramDefinition& definition = session.program().definition();
  Json json = {{"producer", "duet " DUET_VERSION},
               {"program", hex(program_identity(definition))},
               {"limits", Json::object()},
               {"shared_bytes", session.plan().shared_bytes},
               {"buffers", Json::array()}};
  for (size_t i = 0; i < definition.symbols.size(); ++i)
    if (definition.symbols[i].kind == model::Symbol::Kind::kLimit)
      json["limits"][definition.symbols[i].name] = session.plan().symbols[i];
  for (size_t i = 0; i < definition.shared.size(); ++i) {
    model::TensorView view = session.shared(definition.shared[i].name);
    json["buffers"].push_back({{"name", definition.shared[i].name},
                               {"dtype", model::dtype_name(view.dtype)},
                               {"shape", std::vector<int64_t>(view.dims, view.dims + view.rank)},
                               {"offset", session.plan().shared_offsets[i]},
                               {"bytes", view.bytes()}});
  }
  return json;
}

std::string text_of(const Json& json) {
  std::string text = printable(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  return text.size() <= 200 ? text : text.substr(0, 197) + "...";
}

// The first of the expected members that is not there or has another value; "" if there is none.
std::string first_difference(const Json& expected, const Json& given) {
  if (!given.is_object()) return "it is no object";
  for (const auto& [name, value] : expected.items()) {
    auto found = given.find(name);
    if (found == given.end()) return fmt::format("{} is missing", printable(name));
    if (*found != value)
      return fmt::format("{} is {} in the file and {} in this session", printable(name), text_of(*found),
                         text_of(value));
  }
  return "";
}

Status compare(const Json& expected, const Json& given) {
  for (const char* name : {"program", "limits", "shared_bytes", "buffers"})
    if (!given.is_object() || !given.contains(name))
      return failure(ErrorCode::kBadInput, "the header has no field \"{}\"", name);
  if (given["program"] != expected["program"])
    return failure(
        ErrorCode::kUsage,
        "it keeps the state of another program: {}, this one is {} (programs are told apart by their "
        "methods, buffers and weights)",
        text_of(given["program"]), text_of(expected["program"]));
  if (std::string difference = first_difference(expected["limits"], given["limits"]); !difference.empty())
    return failure(ErrorCode::kUsage, "limit {}; use the limits that it was saved with: {}", difference,
                   text_of(given["limits"]));
  if (given["shared_bytes"] != expected["shared_bytes"])
    return failure(ErrorCode::kUsage, "shared_bytes is {} in the file and {} in this session",
                   text_of(given["shared_bytes"]), text_of(expected["shared_bytes"]));
  const Json &theirs = given["buffers"], &ours = expected["buffers"];
  if (!theirs.is_array() || theirs.size() != ours.size())
    return failure(ErrorCode::kBadInput, "{} buffers, the program has {}", theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i)
    if (std::string difference = first_difference(ours[i], theirs[i]); !difference.empty())
      return failure(ErrorCode::kUsage, "buffers[{}] ({}): {}", i, text_of(ours[i]["name"]), difference);
  return {};
}

uint64_t data_start(uint64_t header_bytes) {
  static_assert(kStateAlignment == model::kSectionAlignment);
  return model::aligned(kStateFixedBytes + header_bytes);
}

std::array<std::byte, kStateFixedBytes> fixed_part(uint64_t header_bytes) {
  std::array<std::byte, kStateFixedBytes> bytes{};
  std::memcpy(bytes.data(), kStateMagic, sizeof kStateMagic);
  std::memcpy(bytes.data() + 8, &kStateVersion, sizeof kStateVersion);
  std::memcpy(bytes.data() + 16, &header_bytes, sizeof header_bytes);
  return bytes;
}

// Reads and checks all before the shared bytes; gives the bytes of the JSON header.
Result<uint64_t> check_header(Session& session, InputFile& file) {
  std::array<std::byte, kStateFixedBytes> fixed{};
  if (file.bytes() < fixed.size())
    return failure(ErrorCode::kBadInput, "is no state file: it has {} bytes", file.bytes());
  DUET_TRY(file.read(fixed));
  if (std::memcmp(fixed.data(), kStateMagic, sizeof kStateMagic) != 0)
    return failure(ErrorCode::kBadInput, "is no state file: it does not begin with \"DUETSTAT\"");
  uint32_t version = 0;
  uint64_t header_bytes = 0;
  std::memcpy(&version, fixed.data() + 8, sizeof version);
  std::memcpy(&header_bytes, fixed.data() + 16, sizeof header_bytes);
  if (version != kStateVersion)
    return failure(ErrorCode::kUnsupported, "state version {}, this Duet reads version {}", version,
                   kStateVersion);
  if (header_bytes > kMaxStateHeaderBytes || header_bytes > file.left())
    return failure(ErrorCode::kBadInput,
                   "header of {} bytes, expected at most {} and no more than the file has", header_bytes,
                   kMaxStateHeaderBytes);
  std::string header(header_bytes, '\0');
  DUET_TRY(file.read(std::as_writable_bytes(std::span(header))));
  DUET_ASSIGN(Json json, model::HeaderJson::parse(header));
  DUET_TRY(compare(expected_header(session), json));
  uint64_t expected = data_start(header_bytes) + session.plan().shared_bytes + kChecksumBytes;
  if (file.bytes() != expected)
    return failure(ErrorCode::kBadInput, "the file has {} bytes, expected {}: it is cut short or damaged",
                   file.bytes(), expected);
  return header_bytes;
}

// Reads the file once more from its beginning, its shared bytes into `shared` unless that is empty, and
// checks the checksum at its end.
Status read_all(InputFile& file, uint64_t header_bytes, std::span<std::byte> shared) {
  Hasher hash;
  std::vector<std::byte> chunk(kChunkBytes);
  auto read_chunks = [&](uint64_t bytes) -> Status {
    while (bytes > 0) {
      auto part = std::span(chunk).first(std::min<uint64_t>(bytes, chunk.size()));
      DUET_TRY(file.read(part));
      hash.add(part);
      bytes -= part.size();
    }
    return {};
  };
  file.rewind();
  if (shared.empty()) {
    DUET_TRY(read_chunks(file.bytes() - kChecksumBytes));
  } else {
    DUET_TRY(read_chunks(data_start(header_bytes)));
    DUET_TRY(file.read(shared));
    hash.add(shared);
  }
  uint64_t checksum = 0;
  DUET_TRY(file.read(std::as_writable_bytes(std::span(&checksum, 1))));
  if (checksum == hash.digest()) return {};
  return failure(ErrorCode::kBadInput, "the file is damaged: its checksum is {}, its bytes have {}",
                 hex(checksum), hex(hash.digest()));
}

Status load(Session& session, InputFile& file) {
  DUET_ASSIGN(uint64_t header_bytes, check_header(session, file));
  DUET_TRY(read_all(file, header_bytes, {}));  // before the session changes
  auto shared = session.shared_arena().first(session.plan().shared_bytes);
  if (shared.empty()) return {};
  return read_all(file, header_bytes, shared);
}

}  // namespace

uint64_t program_identity(const ProgramDefinition& definition) {
  Hasher hash;
  hash.add(uint64_t{definition.symbols.size()});
  for (const model::Symbol& symbol : definition.symbols) {
    hash.add(std::string_view(symbol.name));
    hash.add(static_cast<uint64_t>(symbol.kind));
    for (const auto* expression : {&symbol.min, &symbol.max, &symbol.value})
      hash.add(expression->to_string());
  }
  hash.add(uint64_t{definition.constants.size()});
  for (const model::Constant& constant : definition.constants) {
    add_tensor(hash, constant);
    hash.add(static_cast<uint64_t>(constant.layout));
    hash.add(constant.checksum);
  }
  hash.add(uint64_t{definition.shared.size()});
  for (const model::SharedBuffer& buffer : definition.shared) {
    add_tensor(hash, buffer);
    hash.add(buffer.initial ? fmt::format("{}", *buffer.initial) : "");
  }
  hash.add(uint64_t{definition.methods.size()});
  for (const model::Method& method : definition.methods) add_method(hash, method);
  return hash.digest();
}

Status save_state(Session& session, const std::string& path) {
  std::string header = expected_header(session).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (header.size() > kMaxStateHeaderBytes)
    return failure(ErrorCode::kUnsupported, "{}: a header of {} bytes, expected at most {}", path,
                   header.size(), kMaxStateHeaderBytes);
  auto fixed = fixed_part(header.size());
  std::vector<std::byte> padding(data_start(header.size()) - kStateFixedBytes - header.size());
  std::span<const std::byte> shared = session.shared_arena().first(session.plan().shared_bytes);
  std::vector<std::span<const std::byte>> parts = {fixed, std::as_bytes(std::span(header)), padding, shared};
  Hasher hash;
  for (auto part : parts) hash.add(part);
  uint64_t checksum = hash.digest();
  parts.push_back(std::as_bytes(std::span(&checksum, 1)));
  return write_whole_file(path, parts);
}

Status load_state(Session& session, const std::string& path) {
  try {
    DUET_ASSIGN(InputFile file, InputFile::open(path));
    Status loaded = load(session, file);
    if (loaded) return loaded;
    const std::string& message = loaded.error().message;  // the file's own begin with its name already
    return failure(loaded.error().code, "{}{}", message.starts_with(path + ": ") ? "" : path + ": ", message);
  } catch (const nlohmann::json::exception& error) {
    return failure(ErrorCode::kBadInput, "{}: {}", path, error.what());
  }
}

}  // namespace duet::runner
