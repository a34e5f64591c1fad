// Writes small valid inputs of every fuzz target to DIRECTORY/NAME/: what fuzzing begins with.
//
// usage: make_seeds DIRECTORY
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "memory/error.h"
#include "model/program_header.h"
#include "runner/npy.h"
#include "runner/state_file.h"
#include "tests/model/importers/torch_bytes.h"
#include "tests/model/support.h"
#include "tests/tokenizer/fixture.h"
#include "tokenizer/vocabulary.h"

namespace {

using namespace duet;

std::filesystem::path root;

void write(const std::string& target, const std::string& name, const std::string& bytes) {
  std::filesystem::create_directories(root / target);
  std::ofstream(root / target / name, std::ios::binary) << bytes;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// As program_fuzz takes it: the JSON header, which ends with a line feed, and the data.
void write_program(const std::string& name, model::MultiEntryPointExporter& exporter) {
  model::TemporaryDirectory directory;
  DUET_CHECK(exporter.save(directory.path() + "/p").has_value());
  std::string file = read(directory.path() + "/p");
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data() + 8, sizeof header_bytes);
  write("program", name,
        file.substr(model::kFixedHeaderBytes, header_bytes) +
            file.substr(std::min(file.size(), model::data_start(header_bytes))));
  if (name == "cache") write("program", "cache-file", file);
}

std::vector<float> numbers(size_t n) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 7) / 4 - 1;
  return values;
}

void layers_program() {
  model::MultiEntryPointExporter e;
  e.dynamic("n", 1, 4);
  e.constant("W", numbers(20), {5, 4}, model::Layout::kPanels);
  e.constant("P", numbers(12), {3, 4});
  e.constant("gamma", numbers(4), {4});
  auto& m = e.method("run");
  std::string ids = m.input("ids", model::DType::kI32, {"n"}), at = m.input("at", model::DType::kI32, {"n"});
  std::string x = m.call("embed", "embed", {ids, at, "W", "P"}, {{"scale", 2.0}});
  std::string y = m.call("norm", "norm", {x, "gamma"}, {{"epsilon", 1e-5}});
  std::string z = m.call("linear", "linear", {y, "W"}, {{"activation", std::string("gelu")}});
  m.output("z", z);
  m.output("ids", m.call("select_argmax", "select", {y, "W"}, {{"suppress", std::vector<int64_t>{1}}}));
  write_program("layers", e);
}

void attention_program() {
  model::MultiEntryPointExporter e;
  e.dynamic("n", 1, 20);
  e.dynamic("rows", 1, 3);
  e.buffer("table", model::DType::kI32, {4, 2});
  e.buffer("pool", model::DType::kF32, {3, 2, 4, 16});
  auto& m = e.method("run");
  std::string qkv = m.input("qkv", model::DType::kF32, {"n", 12});
  model::InputSpec spec;
  spec.name = "lengths";
  spec.dtype = model::DType::kI32;
  spec.shape = {"rows"};
  spec.min_value = 1;
  spec.max_value = "n";
  spec.sums_to = "n";
  std::string lengths = m.input(spec);
  auto index = m.call_all("ragged_index", "index", {lengths}, {{"tokens", std::string("n")}});
  model::Attributes heads = {{"heads", int64_t{2}}};
  m.output("own", m.call("attend_ragged", "own", {qkv, index[0], lengths}, heads));
  m.call("cache_write", "write", {qkv, index[2], index[3], "table", "pool"}, {{"column", int64_t{4}}});
  heads["extra"] = int64_t{1};
  std::string cached = m.call("attend_cached", "cached", {qkv, index[2], index[3], "table", "pool"}, heads);
  m.output("last", m.call("gather_rows", "last", {cached, index[1]}));
  write_program("attention", e);
}

void programs() {
  layers_program();
  attention_program();
  model::MultiEntryPointExporter cache, marian, sum;
  model::build_cache(cache);
  write_program("cache", cache);
  model::build_small_marian(marian);
  write_program("marian", marian);
  sum.dynamic("n", 1, 4);
  sum.buffer("total", model::DType::kF32, {4, 3}, 0.5);
  auto& m = sum.method("sum");
  std::string a = m.input("a", model::DType::kF32, {"n", 3});
  m.call("write_block", "keep", {a, "total"});
  m.output("twice", m.call("add", "add", {a, a}));
  write_program("sum", sum);
}

void weights() {
  const model::SmallTensors tensors = {
      {"a", model::small_f32({2, 3})}, {"b", {"F16", {2}, "\x01\x02\x03\x04"}}, {"c", {"BF16", {}, "ab"}}};
  write("safetensors", "three", model::safetensors_bytes(tensors));
  write("safetensors", "none", model::safetensors_bytes("{\"__metadata__\":{\"format\":\"pt\"}}", ""));
  model::SmallCheckpoint checkpoint;
  write("config", "small", checkpoint.config.dump());
  write("config", "generation",
        R"({"num_beams":4,"max_length":20,"bad_words_ids":[[11]],"early_stopping":"never"})");
}

void torch_files() {
  const std::string floats(24, '\x3f');
  auto tensor = [](bool legacy) {
    return model::pickled_tensor(model::pickled_storage({"FloatStorage", "0", 6, legacy}), 0, {2, 3}, {3, 1});
  };
  auto dict = [&](bool legacy) {
    return model::whole_pickle(model::pickled_dict({{"a", tensor(legacy)}, {"b", tensor(legacy)}}));
  };
  write("torch", "pickle", dict(false));
  write("torch", "zip", model::torch_zip_bytes(dict(false), {{"0", floats}}));
  write("torch", "legacy", model::torch_legacy_bytes(dict(true), {{"0", floats}}));
  write("torch", "zip64", model::zip_bytes({{"m/data.pkl", dict(false)}, {"m/data/0", floats}}, true));
}

void texts() {
  tokenizer::SpmModel plain;
  for (const char* piece : {"a", "b", "ab",
                            "\xE2\x96\x81"
                            "a",
                            "l", "o", "He"})
    plain.pieces.push_back({piece, -2.5f});
  write("sentencepiece", "unigram", tokenizer::serialize(plain));
  plain.model_type = 2;
  write("sentencepiece", "bpe", tokenizer::serialize(plain));
  const std::vector<std::string> pieces = {"</s>", "<unk>", "a",
                                           "\xE2\x96\x81"
                                           "ab",
                                           "<pad>"};
  write("vocabulary", "five", *tokenizer::Vocabulary::serialize(pieces));
  write("text", "sentences",
        "Hello, Dr. Smith. It is 1.5 km!\r\n  Au revoir\xE2\x80\xA6 \xF0\x9F\x98\x80 \xFF");
  write("text", "token", ">>fra<< Good morning.");
}

void values() {
  int i = 0;
  for (const char* value : {"[1,2,3]", "[[1.5,-2e3],[true,false]]", "7", "ones[2,3]", "rand[4,3]@7",
                            "range:i32[5]", "zeros[0,3]", "x.npy", "x.bin:f32[10,20]"})
    write("value", std::to_string(i++), value);
  model::TemporaryDirectory directory;
  std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  DUET_CHECK(runner::write_npy(directory.path() + "/a.npy", model::view_of(numbers, {2, 3})).has_value());
  write("npy", "matrix", read(directory.path() + "/a.npy"));
  model::MultiEntryPointExporter exporter;
  model::build_cache(exporter);
  auto session = model::open_session(model::save_and_open(exporter, directory));
  DUET_CHECK(runner::save_state(*session, directory.path() + "/state").has_value());
  write("state", "cache", read(directory.path() + "/state"));
}

// Slots, then: damage?, method, elements.
void calls() {
  write("call", "prefill-decode",
        std::string("\x03\x00\x00\x01\x00\x00\x00\x02\x03\x00\x00\x03\x00\x0b\x01\x04"
                    "\x00\x02\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00",
                    28));
  write("call", "release", std::string("\x00\x00\x00\x03\x00\x00\x00\x00\x00", 9));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: make_seeds DIRECTORY\n"), 2;
  root = argv[1];
  programs();
  weights();
  torch_files();
  texts();
  values();
  calls();
}
