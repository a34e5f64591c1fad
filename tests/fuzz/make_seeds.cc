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

void programs() {
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
