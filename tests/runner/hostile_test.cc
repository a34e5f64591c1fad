// Files made to do harm, and what duet says of them: one line on standard error that names the file, the
// field and the value, and an exit code; never a signal, never a hang. With DUET_HOSTILE_TABLE=FILE the cases
// and their messages are written there as the table of docs/hostile-input.md.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "model/program_header.h"
#include "tests/model/importers/torch_bytes.h"
#include "tests/model/support.h"
#include "tests/runner/golden.h"
#include "tests/runner/run_command.h"
#include "tests/tokenizer/fixture.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Edit = std::function<void(Json&)>;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t kAddressSpace = RLIM_INFINITY;  // sanitizers reserve terabytes
#else
constexpr rlim_t kAddressSpace = rlim_t{1} << 30;
#endif

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

template <class T>
std::string bytes_of(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string program_of(const std::string& header, const std::string& data) {
  std::string bytes = bytes_of(model::fixed_part(header)) + header;
  bytes.resize(model::data_start(header.size()), '\0');
  return bytes + data;
}

// A folder of its own for a case, with a model directory and its program to spoil.
struct Place {
  fs::path folder, model = folder / "model", program = folder / "model.duet";

  // Each gives the arguments of a command that meets the spoiled file.
  using Arguments = std::vector<std::string>;
  Arguments info() const { return {"info", program.string()}; }
  Arguments verify() const { return {"verify", program.string()}; }
  Arguments translate() const { return {"translate", "-q", "-m", program.string(), "Hello."}; }
  Arguments convert() const {
    return {"convert", "-q", model.string(), "-o", (folder / "new.duet").string()};
  }

  void program_bytes(const std::function<void(std::string&)>& spoil) const {
    std::string bytes = read(program);
    spoil(bytes);
    write(program, bytes);
  }
  void program_text(const std::function<void(std::string&)>& spoil) const {  // with a checksum that fits
    std::string bytes = read(program), header = header_of(bytes);
    std::string data = bytes.substr(model::data_start(header.size()));
    spoil(header);
    write(program, program_of(header, data));
  }
  void program_header(const Edit& edit) const {
    program_text([&](std::string& text) {
      Json json = Json::parse(text);
      edit(json);
      text = json.dump() + "\n";
    });
  }
  static std::string header_of(const std::string& bytes) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data() + 8, 8);
    return bytes.substr(model::kFixedHeaderBytes, header_bytes);
  }
  void model_file(const std::string& name, const std::string& bytes) const { write(model / name, bytes); }
  void model_json(const std::string& name, const Edit& edit) const {
    Json json = Json::parse(read(model / name));
    edit(json);
    model_file(name, json.dump());
  }
  void safetensors_header(const Edit& edit) const {
    std::string bytes = read(model / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    Json json = Json::parse(bytes.substr(8, length));
    edit(json);
    std::string header = json.dump();
    model_file("model.safetensors", bytes_of(uint64_t{header.size()}) + header + bytes.substr(8 + length));
  }
  void fifo_instead(const fs::path& path) const {
    fs::remove(path);
    ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  }
};

struct Case {
  const char* name;
  std::function<Place::Arguments(const Place&)> make;
  int code;
  std::vector<std::string> parts;  // of the one line
  CommandOptions options = {};
};

constexpr const char* kWeight = "model.encoder.layers.0.fc1.weight";

std::vector<Case> program_cases() {
  auto header = [](const Edit& edit) {
    return [edit](const Place& p) {
      p.program_header(edit);
      return p.info();
    };
  };
  auto bytes = [](const std::function<void(std::string&)>& spoil) {
    return [spoil](const Place& p) {
      p.program_bytes(spoil);
      return p.info();
    };
  };
  auto text = [](const std::function<void(std::string&)>& spoil) {
    return [spoil](const Place& p) {
      p.program_text(spoil);
      return p.info();
    };
  };
  return {
      {"program: missing",
       [](const Place& p) {
         fs::remove(p.program);
         return p.translate();
       },
       4,
       {"No such file"}},
      {"program: empty", bytes([](std::string& b) { b.clear(); }), 3, {"the file is empty"}},
      {"program: a directory",
       [](const Place& p) {
         return Place::Arguments{"info", p.model.string()};
       },
       4,
       {"is a directory"}},
      {"program: a FIFO",
       [](const Place& p) {
         p.fifo_instead(p.program);
         return p.info();
       },
       4,
       {"not a regular file"}},
      {"program: a text file",
       bytes([](std::string& b) { b = "Hello.\n"; }),
       3,
       {"not a Duet program", "duet convert"}},
      {"program: a state file",
       [](const Place& p) {
         write(p.program, "DUETSTAT and more");
         return p.info();
       },
       3,
       {"model.duet", "is a state file"}},
      {"program: of version 1",
       bytes([](std::string& b) { b[4] = 1; }),
       3,
       {"program version 1", "reads version 2", "duet convert"}},
      {"program: cut in its fixed part",
       bytes([](std::string& b) { b.resize(20); }),
       3,
       {"20 bytes, expected 24"}},
      {"program: cut in its header",
       bytes([](std::string& b) { b.resize(5000); }),
       3,
       {"in a file of 5000 bytes"}},
      {"program: cut in its data",
       bytes([](std::string& b) { b.resize(b.size() - 1); }),
       3,
       {"constants[", "outside the file"}},
      {"program: header of 2^63 bytes",
       bytes([](std::string& b) { b[15] = '\x80'; }),
       3,
       {"header of 92233720", "cut short or damaged"}},
      {"program: a bit of the header flipped",
       bytes([](std::string& b) { b[1000] ^= 1; }),
       3,
       {"the header is damaged: its checksum is"}},
      {"program: a bit of a tokenizer flipped",
       [](const Place& p) {
         p.program_bytes(
             [](std::string& b) { b[model::data_start(Place::header_of(b).size()) + 1000] ^= 1; });
         return p.translate();
       },
       3,
       {"sections[0].checksum", "tokenizer/source.spm", "expected"}},
      {"program: a bit of a weight flipped",
       [](const Place& p) {
         p.program_bytes([](std::string& b) { b.back() ^= 1; });
         return p.verify();
       },
       3,
       {"constant \"", "is damaged: its checksum is", "expected"}},
      {"program: a byte behind its end",
       [](const Place& p) {
         p.program_bytes([](std::string& b) { b += 'x'; });
         return p.verify();
       },
       3,
       {"1 bytes behind the last byte of data"}},
      {"program: a header nested 100,000 deep",
       text([](std::string& h) { h = repeated("[", 100000); }),
       3,
       {"nested more than 32 deep"}},
      {"program: a field twice",
       text([](std::string& h) { h.insert(1, "\"metadata\":{},"); }),
       3,
       {"the key \"metadata\" stands twice"}},
      {"program: an offset that wraps",
       header([](Json& h) { h["constants"][0]["offset"] = ~uint64_t{63}; }),
       3,
       {"constants[0]", "18446744073709551552", "outside the file"}},
      {"program: an offset between the multiples",
       header([](Json& h) { h["constants"][0]["offset"] = 32; }),
       3,
       {"constants[0].offset", "32 is not a multiple of 64"}},
      {"program: a shape whose product overflows",
       header([](Json& h) {
         h["constants"][0]["shape"] = {4294967296, 4294967296};
       }),
       3,
       {"constants[0].bytes", "4294967296"}},
      {"program: a negative size",
       header([](Json& h) { h["constants"][0]["shape"][0] = -1; }),
       3,
       {"constants[0].shape[0]", ">= 0"}},
      {"program: an unknown type",
       header([](Json& h) { h["constants"][0]["dtype"] = "f4"; }),
       3,
       {"constants[0].dtype", "unknown dtype"}},
      {"program: an unknown operator",
       header([](Json& h) { h["methods"][1]["operators"][0]["kind"] = "system"; }),
       3,
       {"unknown operator kind \"system\""}},
      {"program: an operand that nothing defines",
       header([](Json& h) { h["methods"][1]["operators"][0]["inputs"][0] = "nobody"; }),
       3,
       {"methods[1].operators[0].inputs[0]", "nobody"}},
      {"program: a buffer of 2^62 elements",
       header([](Json& h) { h["shared"][0]["shape"] = {int64_t{1} << 62}; }),
       3,
       {"overflows"}},
      {"program: metadata that do not fit it",
       [](const Place& p) {
         p.program_header([](Json& h) { h["metadata"]["decoder_start_id"] = "none"; });
         return p.translate();
       },
       3,
       {"metadata.decoder_start_id is missing or no token id"}},
      {"program: without tokenizer",
       [](const Place& p) {
         p.program_header([](Json& h) { h["sections"] = Json::array(); });
         return p.translate();
       },
       3,
       {"model.duet: source vocabulary", "0 bytes"}},
  };
}

std::vector<Case> weight_cases() {
  auto header = [](const Edit& edit) {
    return [edit](const Place& p) {
      p.safetensors_header(edit);
      return p.convert();
    };
  };
  auto file = [](const std::function<std::string(std::string)>& spoil) {
    return [spoil](const Place& p) {
      p.model_file("model.safetensors", spoil(read(p.model / "model.safetensors")));
      return p.convert();
    };
  };
  const std::string name = "model.safetensors";
  return {
      {"safetensors: missing",
       [](const Place& p) {
         fs::remove(p.model / "model.safetensors");
         return p.convert();
       },
       4,
       {name}},
      {"safetensors: empty", file([](std::string) { return ""; }), 3, {name, "empty"}},
      {"safetensors: a FIFO",
       [](const Place& p) {
         p.fifo_instead(p.model / "model.safetensors");
         return p.convert();
       },
       4,
       {name, "not a regular file"}},
      {"safetensors: 5 bytes", file([](std::string) { return "12345"; }), 3, {name, "5 bytes"}},
      {"safetensors: header of 2^63 bytes",
       file([](std::string b) {
         b[7] = '\x80';
         return b;
       }),
       3,
       {name, "92233720"}},
      {"safetensors: header longer than the file",
       file([](std::string b) { return b.substr(0, 1000); }),
       3,
       {name, "9576", "truncated"}},
      {"safetensors: header that is no JSON",
       file([](std::string b) {
         b[8] = 'x';
         return b;
       }),
       3,
       {name}},
      {"safetensors: nested 100,000 deep",
       file([](std::string) {
         std::string h = "{\"a\":" + repeated("[", 100000);
         return bytes_of(uint64_t{h.size()}) + h;
       }),
       3,
       {name}},
      {"safetensors: cut in its data",
       file([](std::string b) {
         b.resize(b.size() - 100);
         return b;
       }),
       3,
       {name, "data_offsets", "inside 675466 bytes"}},
      {"safetensors: 8 bytes behind its data", file([](std::string b) { return b + "12345678"; }), 3, {name}},
      {"safetensors: two tensors that overlap",
       header([](Json& h) {
         auto& offsets = h[kWeight]["data_offsets"];
         uint64_t bytes = offsets[1].get<uint64_t>() - offsets[0].get<uint64_t>();
         offsets = {64, 64 + bytes};
       }),
       3,
       {name, "overlap"}},
      {"safetensors: offsets beyond 2^63",
       header([](Json& h) {
         h[kWeight]["data_offsets"] = {~uint64_t{0} - 10, ~uint64_t{0}};
       }),
       3,
       {name, kWeight, "18446744073709551605"}},
      {"safetensors: a shape whose product overflows",
       header([](Json& h) {
         h[kWeight]["shape"] = {4294967296, 4294967297};
       }),
       3,
       {name, kWeight, "4294967296"}},
      {"safetensors: a negative offset",
       header([](Json& h) { h[kWeight]["data_offsets"][0] = -1; }),
       3,
       {name, kWeight, "data_offsets"}},
      {"safetensors: an unknown type",
       header([](Json& h) { h[kWeight]["dtype"] = "F4"; }),
       3,
       {name, kWeight, "F4"}},
      {"safetensors: a weight that is not there", header([](Json& h) { h.erase(kWeight); }), 3, {name}},
      {"safetensors: a weight of another shape",
       header([](Json& h) { std::swap(h[kWeight]["shape"][0], h[kWeight]["shape"][1]); }),
       3,
       {name, kWeight, "expected"}},
      {"safetensors: weights that are no numbers",
       file([](std::string b) {
         size_t end = b.find("}}") + 2;  // of the header, whose last tensor ends so
         b.replace(b.size() - (b.size() - end) / 2 / 2 * 2, 20000,
                   repeated("\xff\x7f", 10000));  // f16: no numbers
         return b;
       }),
       3,
       {name}},
      {"safetensors: a Git LFS pointer",
       file([](std::string) { return "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"; }),
       3,
       {name, "LFS"}},
  };
}

std::vector<Case> model_cases() {
  auto config = [](const Edit& edit) {
    return [edit](const Place& p) {
      p.model_json("config.json", edit);
      return p.convert();
    };
  };
  auto file = [](const char* name, const std::string& bytes) {
    return [name, bytes](const Place& p) {
      p.model_file(name, bytes);
      return p.convert();
    };
  };
  auto vocabulary = [](const Edit& edit) {
    return [edit](const Place& p) {
      p.model_json("vocab.json", edit);
      return p.convert();
    };
  };
  auto pieces = [](const tokenizer::SpmModel& model) {
    return [bytes = tokenizer::serialize(model)](const Place& p) {
      p.model_file("source.spm", bytes);
      return p.convert();
    };
  };
  std::string hostile_map = bytes_of(uint32_t{1024}) + repeated(bytes_of(uint32_t{0x7fffffff}), 256) + "x";
  return {
      {"config: missing",
       [](const Place& p) {
         fs::remove(p.model / "config.json");
         return p.convert();
       },
       4,
       {"config.json"}},
      {"config: a directory",
       [](const Place& p) {
         fs::remove(p.model / "config.json");
         fs::create_directory(p.model / "config.json");
         return p.convert();
       },
       4,
       {"config.json", "is a directory"}},
      {"config: no JSON", file("config.json", "{\"d_model\": "), 3, {"config.json"}},
      {"config: a list", file("config.json", "[]"), 3, {"config.json"}},
      {"config: nested 100,000 deep",
       [](const Place& p) {
         std::string t = read(p.model / "config.json");
         p.model_file("config.json", t.insert(t.find('{') + 1, "\"a\":" + repeated("[", 100000) + ","));
         return p.convert();
       },
       3,
       {"config.json"}},
      {"config: a field twice",
       [](const Place& p) {
         std::string t = read(p.model / "config.json");
         p.model_file("config.json", t.insert(t.find('{') + 1, "\"d_model\":8,"));
         return p.convert();
       },
       3,
       {"config.json", "d_model"}},
      {"config: a string of 100 MB",
       file("config.json", "{\"a\":\"" + std::string(100000000, 'x') + "\"}"),
       3,
       {"config.json", "bytes"}},
      {"config: d_model 10^30",
       [](const Place& p) {
         p.model_json("config.json", [](Json& c) { c["d_model"] = 1e30; });
         return p.convert();
       },
       3,
       {"config.json", "d_model"}},
      {"config: d_model -1", config([](Json& c) { c["d_model"] = -1; }), 3, {"config.json", "d_model", "-1"}},
      {"config: d_model \"64\"", config([](Json& c) { c["d_model"] = "64"; }), 3, {"config.json", "d_model"}},
      {"config: 4,000,000,000 layers",
       config([](Json& c) { c["encoder_layers"] = 4000000000u; }),
       3,
       {"config.json", "encoder_layers", "4000000000"}},
      {"config: 3 heads of 64 columns",
       config([](Json& c) { c["decoder_attention_heads"] = 3; }),
       3,
       {"config.json", "decoder_attention_heads"}},
      {"config: </s> outside the vocabulary",
       [](const Place& p) {
         p.model_json("generation_config.json", [](Json& c) { c["eos_token_id"] = 695; });
         return p.convert();
       },
       3,
       {"config.json", "eos_token_id", "695"}},
      {"config: another architecture",
       config([](Json& c) { c["model_type"] = "t5"; }),
       3,
       {"config.json", "t5"}},
      {"vocabulary: no JSON", file("vocab.json", "x"), 3, {"vocab.json"}},
      {"vocabulary: a list", file("vocab.json", "[1, 2]"), 3, {"vocab.json"}},
      {"vocabulary: an id twice", vocabulary([](Json& v) { v.begin().value() = 5; }), 3, {"vocab.json", "5"}},
      {"vocabulary: an id of 2^40",
       vocabulary([](Json& v) { v.begin().value() = int64_t{1} << 40; }),
       3,
       {"vocab.json", "1099511627776"}},
      {"vocabulary: a negative id",
       vocabulary([](Json& v) { v.begin().value() = -1; }),
       3,
       {"vocab.json", "-1"}},
      {"vocabulary: without <unk>",
       vocabulary([](Json& v) { v.erase("<unk>"); }),
       3,
       {"vocab.json", "none with id 1"}},
      {"vocabulary: nested 100,000 deep", file("vocab.json", repeated("{\"a\":", 100000)), 3, {"vocab.json"}},
      {"SentencePiece: empty", file("source.spm", ""), 3, {"source.spm"}},
      {"SentencePiece: a directory",
       [](const Place& p) {
         fs::remove(p.model / "target.spm");
         fs::create_directory(p.model / "target.spm");
         return p.convert();
       },
       4,
       {"target.spm", "is a directory"}},
      {"SentencePiece: a FIFO that nobody writes",
       [](const Place& p) {
         p.fifo_instead(p.model / "target.spm");
         return p.convert();
       },
       4,
       {"target.spm", "a pipe that nobody writes to"}},
      {"SentencePiece: a text", file("source.spm", "Hello, I am no model.\n"), 3, {"source.spm"}},
      {"SentencePiece: cut in half",
       [](const Place& p) {
         std::string b = read(p.model / "source.spm");
         p.model_file("source.spm", b.substr(0, b.size() / 2));
         return p.convert();
       },
       3,
       {"source.spm"}},
      {"SentencePiece: a table of normalization that leads outside",
       pieces({.character_map = hostile_map, .extra = {}}),
       3,
       {"source.spm"}},
      {"SentencePiece: a table longer than itself",
       pieces({.character_map = bytes_of(uint32_t{0xfffffff0}) + "abcd", .extra = {}}),
       3,
       {"source.spm"}},
      {"SentencePiece: without pieces",
       pieces({.pieces = {}, .character_map = {}, .extra = {}}),
       3,
       {"source.spm"}},
      {"SentencePiece: a score that is no number",
       pieces({.pieces = {{"<unk>", 0, 2}, {"a", NAN}}, .character_map = {}, .extra = {}}),
       3,
       {"source.spm"}},
  };
}

std::vector<Case> output_cases() {
  auto with_target = [](const std::string& target) {
    return [target](const Place& p) {
      return Place::Arguments{"convert", "-q", p.model.string(), "-o", target};
    };
  };
  return {
      {"limits: more memory than there is",
       [](const Place& p) {
         return Place::Arguments{"translate",      "-q",      "-m",    p.program.string(), "--slots", "4096",
                                 "--batch-tokens", "1048576", "Hello."};
       },
       4,
       {" bytes", "memory"},
       {.resource_limits = {{RLIMIT_AS, kAddressSpace}}}},
      {"limits: beyond the program's",
       [](const Place& p) {
         return Place::Arguments{"translate", "-q",         "-m",    p.program.string(),
                                 "--slots",   "2000000000", "Hello."};
       },
       2,
       {"--slots is 2000000000", "expected 1 to"}},
      {"output: in a directory that takes no files",
       with_target("/sys/new.duet"),
       4,
       {"/sys/new.duet.part: cannot create"}},
      {"output: in no directory", with_target("/none/new.duet"), 4, {"/none/new.duet", "does not exist"}},
      {"output: a directory",
       [](const Place& p) {
         return Place::Arguments{"convert", "-q", p.model.string(), "-o", p.folder.string()};
       },
       4,
       {"is a directory"}},
      {"output: a device", with_target("/dev/null"), 4, {"/dev/null", "is no regular file"}},
      {"output: a program on a full disk",
       [](const Place& p) { return p.convert(); },
       4,
       {"new.duet.part: cannot write: File too large"},
       {.resource_limits = {{RLIMIT_FSIZE, 100000}}}},
      {"output: translations on a full disk",
       [](const Place& p) { return p.translate(); },
       4,
       {"standard output: cannot write: No space left on device"},
       {.out_path = "/dev/full"}},
      {"input: a directory",
       [](const Place& p) {
         return Place::Arguments{"translate", "-q", "-i", p.folder.string()};
       },
       4,
       {"directory"}},
      {"input: a line of 17 MiB",
       [](const Place& p) {
         write(p.folder / "long.txt", std::string(17 << 20, 'x'));
         return Place::Arguments{"translate", "-q", "-i", (p.folder / "long.txt").string()};
       },
       3,
       {"long.txt", "line 1"}},
  };
}

// pytorch_model.bin in place of model.safetensors.
std::vector<Case> torch_cases() {
  auto file = [](const std::string& bytes) {
    return [bytes](const Place& p) {
      fs::remove(p.model / "model.safetensors");
      p.model_file("pytorch_model.bin", bytes);
      return p.convert();
    };
  };
  auto zip = [](const std::string& pickle, const model::Storages& storages = {}) {
    return model::torch_zip_bytes(model::whole_pickle(pickle), storages);
  };
  auto dict_of = [](const std::string& value) { return model::pickled_dict({{"w", value}}); };
  const std::string four(16, '\x3f');
  auto tensor = [](int64_t elements, int64_t offset, int64_t rows, int64_t stride) {
    return model::pickled_tensor(model::pickled_storage({"FloatStorage", "0", elements}), offset, {rows},
                                 {stride});
  };
  const std::string call_system =
      model::pickled_global("posix", "system") + model::pickled_tuple({model::pickled("id")}) + "R";
  const std::string sound = zip(dict_of(tensor(4, 0, 4, 1)), {{"0", four}});
  return {
      {"pickle: a call of os.system",
       file(zip(call_system)),
       3,
       {"pytorch_model.bin", "posix.system", "nothing was executed"}},
      {"pickle: another global",
       file(zip(dict_of(model::pickled_global("builtins", "eval")))),
       3,
       {"builtins.eval"}},
      {"pickle: of the older form with a global",
       file(model::torch_legacy_bytes(model::whole_pickle(call_system), {})),
       3,
       {"posix.system"}},
      {"pickle: a dict that holds itself",
       file(zip("}q\x01" + model::pickled("w") + "h\x01s")),
       3,
       {"pytorch_model.bin", "w"}},
      {"pickle: a list of 2^31 memos", file(zip(std::string("j\xff\xff\xff\x7f"))), 3, {"pytorch_model.bin"}},
      {"pickle: a text of 4 GB", file(zip(std::string("X\xff\xff\xff\xff"))), 3, {"pytorch_model.bin"}},
      {"pickle: cut short", file(zip("}").substr(0, 40)), 3, {"pytorch_model.bin"}},
      {"pickle: a number instead of a tensor", file(zip(dict_of(model::pickled(7)))), 3, {"w"}},
      {"pickle: a tensor behind its storage",
       file(zip(dict_of(tensor(4, 3, 4, 1)), {{"0", four}})),
       3,
       {"\"w\""}},
      {"pickle: sizes whose product overflows",
       file(zip(dict_of(tensor(4, 0, INT64_MAX, INT64_MAX)), {{"0", four}})),
       3,
       {"\"w\""}},
      {"pickle: a negative offset",
       file(zip(dict_of(tensor(4, -1, 4, 1)), {{"0", four}})),
       3,
       {"\"w\"", "-1"}},
      {"pickle: a storage that is not there",
       file(zip(dict_of(tensor(4, 0, 4, 1)))),
       3,
       {"pytorch_model.bin", "0"}},
      {"pickle: a storage of another size",
       file(zip(dict_of(tensor(5, 0, 4, 1)), {{"0", four}})),
       3,
       {"pytorch_model.bin", "20", "16"}},
      {"pickle: a weight of no Marian model", file(sound), 3, {"pytorch_model.bin", "tensor"}},
      {"zip: a compressed entry",
       file(model::zip_bytes({{"m/data.pkl", "x", 8}})),
       3,
       {"m/data.pkl", "compressed"}},
      {"zip: an encrypted entry",
       file(model::zip_bytes({{"m/data.pkl", "x", 0, 1}})),
       3,
       {"m/data.pkl", "encrypted"}},
      {"zip: a pickle of 5 MB",
       file(model::zip_bytes({{"m/data.pkl", std::string(5 << 20, 'x')}})),
       3,
       {"pytorch_model.bin", "5242880", "at most 4194304"}},
      {"zip: cut in its directory", file(sound.substr(0, sound.size() - 30)), 3, {"pytorch_model.bin"}},
      {"zip: without a pickle",
       file(model::zip_bytes({{"m/data/0", four}})),
       3,
       {"pytorch_model.bin", "data.pkl"}},
      {"PyTorch: empty", file(""), 3, {"pytorch_model.bin", "empty"}},
      {"PyTorch: a Git LFS pointer",
       file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 310020341\n"),
       3,
       {"pytorch_model.bin", "Git LFS", "310,020,341"}},
  };
}

// duet call: what programs are called with.
std::vector<Case> call_cases() {
  using Words = std::vector<std::string>;
  auto call = [](const Words& words) {
    return [words](const Place& p) {
      Place::Arguments arguments = {"call", "-q", "--limit", "slots=2", p.program.string()};
      arguments.insert(arguments.end(), words.begin(), words.end());
      return arguments;
    };
  };
  auto prefill = [&](const std::string& name, const std::string& value) {
    Words words = {"reset_encode_prefill"};
    std::map<std::string, std::string> inputs = {
        {"source_tokens", "[5,6,7,0]"}, {"source_lengths", "[2,2]"}, {"slots", "[0,1]"},
        {"prompt_tokens", "[8,8]"},     {"prompt_lengths", "[1,1]"}, {"target_limits", "[9,9]"}};
    inputs[name] = value;
    for (const auto& [input, given] : inputs) words.push_back(input + "=" + given);
    return call(words);
  };
  auto state = [](const std::function<void(std::string&)>& spoil) {
    return [spoil](const Place& p) {
      const std::string path = (p.folder / "kept.state").string();
      EXPECT_EQ(run_duet({"call", "-q", p.program.string(), "release", "slots=[0]", "--save-state", path})
                    .exit_code,
                0);
      std::string bytes = read(path);
      spoil(bytes);
      write(path, bytes);
      return Place::Arguments{"call", "-q", p.program.string(), "decode", "slots=[0]", "--load-state", path};
    };
  };
  return {
      {"call: an unknown method", call({"decoed", "slots=[0]"}), 2, {"decoed", "decode"}},
      {"call: an unknown input", call({"decode", "slot=[0]"}), 2, {"method decode", "slot", "slots"}},
      {"call: inputs left out",
       call({"reset_encode_prefill", "slots=[0]"}),
       2,
       {"source_tokens", "target_limits"}},
      {"call: an input twice", call({"decode", "slots=[0]", "slots=[1]"}), 2, {"slots", "twice"}},
      {"call: another dtype", call({"decode", "slots=[0.5]"}), 2, {"slots", "0.5"}},
      {"call: a dimension too many", call({"decode", "slots=[[0]]"}), 2, {"slots", "[1, 1]"}},
      {"call: no elements", call({"decode", "slots=[]"}), 2, {"slots"}},
      {"call: beyond the limits", call({"decode", "slots=[0,1,0]"}), 2, {"slots", "3"}},
      {"call: 2^62 ones",
       call({"decode", "slots=ones[4611686018427387904]"}),
       2,
       {"slots", "4611686018427387904"}},
      {"call: a slot out of range", prefill("slots", "[0,2]"), 2, {"slots[1] is 2", "0 to 1"}},
      {"call: a slot twice", prefill("slots", "[1,1]"), 2, {"slots[1] is 1", "twice"}},
      {"call: a token out of range",
       prefill("source_tokens", "[5,1000000,7,0]"),
       2,
       {"source_tokens[1] is 1000000"}},
      {"call: a negative token", prefill("prompt_tokens", "[8,-1]"), 2, {"prompt_tokens[1] is -1"}},
      {"call: lengths that do not add up",
       prefill("source_lengths", "[2,3]"),
       2,
       {"source_lengths", "5", "4"}},
      {"call: a slot that decodes nothing", call({"decode", "slots=[0]"}), 2, {"method decode", "slot"}},
      {"call: an array that is no array",
       [](const Place& p) {
         write(p.folder / "x.npy", "no array");
         return Place::Arguments{"call", "-q", p.program.string(), "decode",
                                 "slots=" + (p.folder / "x.npy").string()};
       },
       3,
       {"x.npy"}},
      {"call: raw bytes that do not fill the shape",
       [](const Place& p) {
         write(p.folder / "x.bin", "12345");
         return Place::Arguments{"call", "-q", p.program.string(), "decode",
                                 "slots=" + (p.folder / "x.bin").string() + ":i32[2]"};
       },
       3,
       {"x.bin", "5", "8"}},
      {"limit: unknown",
       [](const Place& p) {
         return Place::Arguments{"call", p.program.string(), "decode", "--limit", "slot=1"};
       },
       2,
       {"slot", "slots"}},
      {"limit: more memory than there is",
       [](const Place& p) {
         return Place::Arguments{"call",    "-q",         p.program.string(), "decode",
                                 "--limit", "slots=4096", "--limit",          "cache_blocks=4000000"};
       },
       4,
       {"bytes"}},
      {"state: empty", state([](std::string& bytes) { bytes.clear(); }), 3, {"kept.state"}},
      {"state: cut short",
       state([](std::string& bytes) { bytes.resize(bytes.size() / 2); }),
       3,
       {"kept.state", "bytes"}},
      {"state: a flipped bit",
       state([](std::string& bytes) { bytes[bytes.size() / 2] ^= 1; }),
       3,
       {"kept.state", "checksum"}},
      {"state: of other limits",
       [state](const Place& p) {
         auto arguments = state([](std::string&) {})(p);
         arguments.insert(arguments.end(), {"--limit", "slots=3"});
         return arguments;
       },
       2,
       {"kept.state", "slots is 32", "3"}},
  };
}

class Hostile : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    whole_ = golden::scratch_directory() / "whole";
    fs::create_directories(whole_);
    fs::copy(fs::path(DUET_TEST_DATA) / "../golden/small-c/model", whole_ / "model",
             fs::copy_options::recursive);
    auto made =
        run_duet({"convert", "-q", (whole_ / "model").string(), "-o", (whole_ / "model.duet").string()});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }

  static void check(const char* heading, const std::vector<Case>& cases) {
    const char* table_path = std::getenv("DUET_HOSTILE_TABLE");
    std::ofstream table(table_path ? table_path : "/dev/null", std::ios::app);
    table << "\n## " << heading << "\n\n| case | code | message |\n|---|---|---|\n";
    for (const Case& c : cases) {
      SCOPED_TRACE(c.name);
      Place place{golden::scratch_directory() / "case"};
      fs::remove_all(place.folder);
      fs::copy(whole_, place.folder, fs::copy_options::recursive);
      CommandOptions options = c.options;
      if (options.resource_limits.empty()) options.resource_limits = {{RLIMIT_AS, kAddressSpace}};
      options.timeout_seconds = 20;
      CommandResult result = run_duet(c.make(place), options);
      EXPECT_EQ(result.signal, 0);
      EXPECT_FALSE(result.timed_out);
      EXPECT_EQ(result.exit_code, c.code) << result.err;
      EXPECT_TRUE(result.err.starts_with("duet: ")) << result.err;
      EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
      EXPECT_LT(result.err.size(), 1000u);
      for (const std::string& part : c.parts)
        EXPECT_NE(result.err.find(part), std::string::npos) << "no \"" << part << "\" in " << result.err;
      for (const auto& entry : fs::recursive_directory_iterator(place.folder))
        EXPECT_NE(entry.path().extension(), ".part") << "left behind";
      EXPECT_FALSE(fs::exists(place.folder / "new.duet"));
      std::string message = result.err.substr(0, result.err.find('\n'));
      for (size_t at; (at = message.find(place.folder.string() + "/")) != std::string::npos;)
        message.erase(at, place.folder.string().size() + 1);
      if (size_t at = message.find(place.folder.string()); at != std::string::npos)
        message.replace(at, place.folder.string().size(), "FOLDER");
      for (size_t at = 0; (at = message.find('|', at)) != std::string::npos; at += 2)
        message.insert(at, 1, '\\');
      table << "| " << c.name << " | " << result.exit_code << " | `` " << message << " `` |\n";
    }
  }

  static inline fs::path whole_;
};

TEST_F(Hostile, ProgramsAreErrorsThatNameTheFieldAndTheValue) { check("Programs", program_cases()); }
TEST_F(Hostile, WeightsAreErrorsThatNameTheTensor) { check("Weights", weight_cases()); }
TEST_F(Hostile, ModelDirectoriesAreErrorsThatNameTheFile) { check("Model directories", model_cases()); }
TEST_F(Hostile, PyTorchCheckpointsAreErrorsThatNameTheTensorAndExecuteNothing) {
  check("PyTorch checkpoints", torch_cases());
}
TEST_F(Hostile, CallsAreErrorsThatNameMethodInputAndValue) { check("Calls and kept state", call_cases()); }
TEST_F(Hostile, LimitsInputsAndOutputsAreErrorsThatNameThem) {
  check("Limits, inputs and outputs", output_cases());
}

}  // namespace
}  // namespace duet::runner
