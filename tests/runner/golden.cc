#include "tests/runner/golden.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iostream>

#include "runner/convert.h"

namespace duet::runner::golden {
namespace {

namespace fs = std::filesystem;

fs::path model_directory(const std::string& model) {
  fs::path own = fs::path(DUET_GOLDEN) / model / "model";
  return fs::exists(own) ? own : fs::path(DUET_ASSETS) / model;
}

// The full data where they are at hand, else the part that the project carries.
fs::path data_directory(const std::string& model) {
  fs::path full = fs::path(DUET_GOLDEN) / "../../../shared/golden" / model;
  return fs::exists(full / "layers.safetensors") ? full : fs::path(DUET_GOLDEN) / model;
}

[[noreturn]] void give_up(const std::string& what) {
  std::cerr << what << std::endl;
  std::abort();
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) give_up("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

const fs::path& scratch_directory() {
  struct Directory {
    fs::path path;
    Directory() {
      std::string pattern = (fs::temp_directory_path() / "duet-test-XXXXXX").string();
      if (!::mkdtemp(pattern.data())) give_up("cannot make " + pattern);
      path = pattern;
    }
    ~Directory() {
      std::error_code ignored;
      fs::remove_all(path, ignored);
    }
  };
  static const Directory directory;
  return directory.path;
}

std::shared_ptr<const model::Program> program(const std::string& model, bool logits) {
  static std::map<std::pair<std::string, bool>, std::shared_ptr<const model::Program>> made;
  auto& entry = made[{model, logits}];
  if (entry) return entry;
  std::string path = (scratch_directory() / (model + (logits ? "-logits.duet" : ".duet"))).string();
  ConvertOptions options;
  options.build.output_logits = logits;
  auto report = convert(model_directory(model).string(), path, options);
  if (!report) give_up(report.error().message);
  auto program = model::Program::open(path);
  if (!program) give_up(program.error().message);
  return entry = *program;
}

std::vector<Sentence> sentences(const std::string& model) {
  std::vector<Sentence> all;
  std::ifstream file(data_directory(model) / "greedy.jsonl");
  for (std::string line; std::getline(file, line);) {
    auto json = nlohmann::json::parse(line);
    all.push_back({json["source"], json["translation"], json["source_ids"], json["target_ids"],
                   json["token_logprobs"], json["cut_at_limit"], json["min_top2_gap"]});
  }
  if (all.empty()) give_up("no golden sentences of " + model);
  return all;
}

int32_t target_limit(const std::string& model) { return model == "tatoeba-en-fr" ? 128 : 48; }

std::vector<LayerCase> layer_cases(const std::string& model) {
  auto directory = data_directory(model);
  std::vector<LayerCase> cases;
  for (const auto& json : nlohmann::json::parse(read(directory / "layers.json")))
    cases.push_back({json["source_ids"], json["decoder_input_ids"], {}});
  std::string bytes = read(directory / "layers.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    auto dot = name.find('.');
    auto index = static_cast<size_t>(std::stoi(name.substr(4, dot - 4)));
    LayerCase::Values values;
    values.dims = entry["shape"].get<std::vector<int64_t>>();
    uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    values.data.resize((end - begin) / sizeof(float));
    std::memcpy(values.data.data(), bytes.data() + 8 + header_bytes + begin, end - begin);
    cases.at(index).outputs[name.substr(dot + 1)] = std::move(values);
  }
  return cases;
}

}  // namespace duet::runner::golden
