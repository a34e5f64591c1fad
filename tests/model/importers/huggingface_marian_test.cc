#include "model/importers/huggingface_marian.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "model/importers/safetensors.h"
#include "tests/model/importers/small_checkpoint.h"
#include "tests/model/importers/torch_bytes.h"

namespace duet::model {
namespace {

constexpr const char* kShared = "model.shared.weight";
constexpr const char* kEncoder = "model.encoder.embed_tokens.weight";
constexpr const char* kDecoder = "model.decoder.embed_tokens.weight";
constexpr const char* kOutput = "lm_head.weight";
const std::string kGolden = DUET_TEST_DATA "/../../golden/";

class HuggingfaceMarian : public testing::Test {
 protected:
  Result<MarianCheckpoint> import() {
    checkpoint.write(directory);
    return import_huggingface_marian(directory.path());
  }

  void refuses(ErrorCode code, std::vector<std::string> parts) {
    parts.push_back(directory.path() + "/model.safetensors: ");
    expect_error(import(), code, parts);
  }

  // Puts tables of 12 rows into the file, each with values of its own where the seeds differ.
  void set_tables(std::vector<std::pair<const char*, int>> tables) {
    for (const char* name : {kShared, kEncoder, kDecoder, kOutput}) checkpoint.tensors.erase(name);
    for (auto [name, seed] : tables) checkpoint.tensors[name] = small_f32({12, 8}, seed);
  }

  void set_rules(bool tie, bool share) {
    checkpoint.config["tie_word_embeddings"] = tie;
    checkpoint.config["share_encoder_decoder_embeddings"] = share;
  }

  void expect_tables(const char* encoder, const char* decoder, const char* output) {
    auto imported = import();
    ASSERT_TRUE(imported) << imported.error().message;
    EXPECT_EQ(imported->tables().encoder_embedding, encoder);
    EXPECT_EQ(imported->tables().decoder_embedding, decoder);
    EXPECT_EQ(imported->tables().output_weight, output);
  }

  TemporaryDirectory directory;
  SmallCheckpoint checkpoint;
};

TEST_F(HuggingfaceMarian, WeightsAreReadByNameInTheirStoredLayout) {
  auto imported = import();
  ASSERT_TRUE(imported) << imported.error().message;
  auto fc1 = imported->linear("model.decoder.layers.1.fc1");
  ASSERT_TRUE(fc1);
  EXPECT_EQ(fc1->outputs, 10u);
  EXPECT_EQ(fc1->inputs, 8u);
  ASSERT_EQ(fc1->weight.size(), 80u);
  EXPECT_EQ(fc1->weight[17] - fc1->weight[0], 17.0f / 1024);  // row 2, column 1
  EXPECT_EQ(fc1->bias.size(), 10u);
  auto norm = imported->norm("model.encoder.layers.0.final_layer_norm");
  ASSERT_TRUE(norm);
  EXPECT_EQ(norm->gamma.size(), 8u);
  EXPECT_EQ(norm->beta.size(), 8u);
  auto bias = imported->final_logits_bias();
  ASSERT_TRUE(bias);
  EXPECT_EQ(bias->size(), 12u);
  expect_error(imported->linear("model.decoder.layers.2.fc1"), ErrorCode::kUsage,
               {"model.decoder.layers.2.fc1.weight"});
  expect_error(imported->linear("model.encoder.layers.0.final_layer_norm"), ErrorCode::kUsage,
               {"not a linear layer"});
}

TEST_F(HuggingfaceMarian, WeightsOutliveTheirFileAndTheFirstCheckpoint) {
  std::optional<MarianCheckpoint> copy;
  {
    auto imported = import();
    ASSERT_TRUE(imported);
    copy = *imported;
  }
  std::filesystem::remove(directory.path() + "/model.safetensors");
  EXPECT_TRUE(copy->encoder_embedding());
}

TEST_F(HuggingfaceMarian, AMissingWeightIsRefused) {
  checkpoint.tensors.erase("model.decoder.layers.1.encoder_attn.q_proj.weight");
  refuses(ErrorCode::kBadInput, {"model.decoder.layers.1.encoder_attn.q_proj.weight is missing", "[8, 8]"});
}

TEST_F(HuggingfaceMarian, ASurplusWeightIsRefused) {
  checkpoint.tensors["model.encoder.layers.1.fc1.weight"] = small_f32({6, 8});
  refuses(ErrorCode::kBadInput, {"\"model.encoder.layers.1.fc1.weight\" of shape [6, 8]", "has no place"});
}

TEST_F(HuggingfaceMarian, AWrongShapeIsRefused) {
  checkpoint.tensors["model.encoder.layers.0.fc1.weight"] = small_f32({8, 6});
  refuses(ErrorCode::kBadInput, {"model.encoder.layers.0.fc1.weight has shape [8, 6], expected [6, 8]"});
}

TEST_F(HuggingfaceMarian, AWrongShapeOfATableIsRefused) {
  checkpoint.tensors[kShared] = small_f32({11, 8});
  refuses(ErrorCode::kBadInput, {"model.shared.weight has shape [11, 8], expected [12, 8]"});
}

TEST_F(HuggingfaceMarian, AWrongTypeIsRefused) {
  checkpoint.tensors["model.encoder.layers.0.fc1.bias"] = {"F64", {6}, std::string(48, '\0')};
  refuses(ErrorCode::kUnsupported,
          {"model.encoder.layers.0.fc1.bias has dtype F64, expected F32, F16 or BF16"});
}

TEST_F(HuggingfaceMarian, AWeightThatIsNotFiniteIsRefusedWhenItIsRead) {
  float infinity = INFINITY;
  std::memcpy(checkpoint.tensors["model.encoder.layers.0.fc1.bias"].data.data() + 12, &infinity, 4);
  auto imported = import();
  ASSERT_TRUE(imported);
  expect_error(imported->linear("model.encoder.layers.0.fc1"), ErrorCode::kBadInput,
               {"/model.safetensors", "model.encoder.layers.0.fc1.bias", "inf", "element 3"});
}

TEST_F(HuggingfaceMarian, OneSharedTableServesAllThreePlaces) {
  expect_tables(kShared, kShared, kShared);
  auto imported = import();
  EXPECT_TRUE(imported->output_is_tied());
  EXPECT_TRUE(imported->embeddings_are_shared());
}

TEST_F(HuggingfaceMarian, EqualCopiesOfATiedTableAreOneTable) {
  set_tables({{kShared, 1}, {kEncoder, 1}, {kDecoder, 1}, {kOutput, 1}});
  expect_tables(kShared, kShared, kShared);
}

TEST_F(HuggingfaceMarian, ATiedTableIsFoundUnderAnyOfItsNames) {
  for (const char* name : {kEncoder, kDecoder, kOutput}) {
    set_tables({{name, 1}});
    expect_tables(name, name, name);
  }
}

TEST_F(HuggingfaceMarian, TablesThatDifferAreNotTied) {
  set_tables({{kShared, 1}, {kEncoder, 2}, {kDecoder, 3}, {kOutput, 4}});
  expect_tables(kEncoder, kDecoder, kOutput);
  set_tables({{kShared, 1}, {kDecoder, 3}});
  expect_tables(kShared, kDecoder, kShared);
  set_tables({{kEncoder, 2}, {kDecoder, 3}});  // the first of decoder and encoder stands in for model.shared
  expect_tables(kEncoder, kDecoder, kDecoder);
  set_tables({{kEncoder, 2}, {kOutput, 4}});
  expect_tables(kEncoder, kOutput, kOutput);
}

TEST_F(HuggingfaceMarian, SeparateEmbeddingsTieTheOutputToTheDecoder) {
  set_rules(true, false);
  set_tables({{kEncoder, 1}, {kDecoder, 2}});
  expect_tables(kEncoder, kDecoder, kDecoder);
  set_tables({{kEncoder, 1}, {kDecoder, 2}, {kOutput, 2}});
  expect_tables(kEncoder, kDecoder, kDecoder);
  set_tables({{kEncoder, 1}, {kOutput, 2}});
  expect_tables(kEncoder, kOutput, kOutput);
  set_tables({{kEncoder, 1}, {kDecoder, 2}, {kOutput, 3}});
  expect_tables(kEncoder, kDecoder, kOutput);
  set_tables({{kDecoder, 2}});
  refuses(ErrorCode::kBadInput, {"model.encoder.embed_tokens.weight is missing", "[12, 8]"});
  set_tables({{kEncoder, 2}});
  refuses(ErrorCode::kBadInput, {"model.decoder.embed_tokens.weight is missing", "[12, 8]"});
}

TEST_F(HuggingfaceMarian, SeparateEmbeddingsHaveNoSharedTable) {
  set_rules(true, false);
  set_tables({{kShared, 3}, {kEncoder, 1}, {kDecoder, 2}});
  refuses(ErrorCode::kBadInput, {"\"model.shared.weight\"", "has no place"});
}

TEST_F(HuggingfaceMarian, SeparateVocabulariesHaveTheirOwnSizes) {
  set_rules(true, false);
  checkpoint.config["vocab_size"] = 20;
  set_tables({{kDecoder, 2}});
  checkpoint.tensors[kEncoder] = small_f32({20, 8}, 1);
  expect_tables(kEncoder, kDecoder, kDecoder);
}

TEST_F(HuggingfaceMarian, UntiedOutputsNeedALayerOfTheirOwn) {
  set_rules(false, true);
  set_tables({{kShared, 1}, {kEncoder, 2}, {kDecoder, 3}, {kOutput, 4}});
  expect_tables(kEncoder, kDecoder, kOutput);
  set_tables({{kShared, 1}, {kOutput, 4}});
  expect_tables(kShared, kShared, kOutput);
  set_tables({{kShared, 1}, {kDecoder, 3}, {kOutput, 4}});
  expect_tables(kShared, kDecoder, kOutput);
  set_tables({{kShared, 1}});
  refuses(ErrorCode::kBadInput, {"lm_head.weight is missing", "tie_word_embeddings false"});
  set_rules(false, false);
  set_tables({{kEncoder, 2}, {kDecoder, 3}, {kOutput, 4}});
  expect_tables(kEncoder, kDecoder, kOutput);
  set_tables({{kEncoder, 2}, {kDecoder, 3}});
  refuses(ErrorCode::kBadInput, {"lm_head.weight is missing"});
}

TEST_F(HuggingfaceMarian, NoEmbeddingAtAllIsRefused) {
  set_tables({});
  refuses(ErrorCode::kBadInput, {"model.encoder.embed_tokens.weight is missing"});
}

TEST_F(HuggingfaceMarian, AnAbsentLogitsBiasIsZero) {
  checkpoint.tensors.erase("final_logits_bias");
  auto imported = import();
  ASSERT_TRUE(imported);
  EXPECT_EQ(imported->final_logits_bias(), std::vector<float>(12, 0.0f));
}

TEST_F(HuggingfaceMarian, ALogitsBiasOfOneDimensionIsRefused) {
  checkpoint.tensors["final_logits_bias"] = small_f32({12});
  refuses(ErrorCode::kBadInput, {"final_logits_bias has shape [12], expected [1, 12]"});
}

TEST_F(HuggingfaceMarian, StoredPositionTablesCountOverComputedOnes) {
  checkpoint.tensors["model.encoder.embed_positions.weight"] = small_f32({5, 8}, 9);
  auto imported = import();
  ASSERT_TRUE(imported);
  EXPECT_FALSE(imported->positions_are_shared());
  EXPECT_EQ(imported->encoder_positions().value().at(0), 9.0f);
  EXPECT_EQ(imported->decoder_positions(), sinusoidal_positions(5, 8));
  checkpoint.tensors["model.decoder.embed_positions.weight"] = small_f32({5, 8}, 9);
  EXPECT_TRUE(import()->positions_are_shared());
  checkpoint.tensors["model.decoder.embed_positions.weight"] = small_f32({6, 8}, 9);
  refuses(ErrorCode::kBadInput, {"model.decoder.embed_positions.weight has shape [6, 8], expected [5, 8]"});
}

TEST_F(HuggingfaceMarian, OtherWeightFormatsAreExplained) {
  checkpoint.write(directory);
  std::filesystem::remove(directory.path() + "/model.safetensors");
  expect_error(import_huggingface_marian(directory.path()), ErrorCode::kIo,
               {"/model.safetensors: there is no such file, nor pytorch_model.bin"});
  for (const char* name : {"tf_model.h5", "pytorch_model.bin.index.json", "model.safetensors.index.json"}) {
    directory.write(name, "{}");
    expect_error(import_huggingface_marian(directory.path()), ErrorCode::kUnsupported,
                 {directory.path() + "/" + name + ": ", "save_pretrained"});
  }
}

// ---- pytorch_model.bin ----

class HuggingfaceMarianTorch : public HuggingfaceMarian {
 protected:
  Result<MarianCheckpoint> import_torch() {
    checkpoint.write(directory);
    std::filesystem::remove(directory.path() + "/model.safetensors");
    directory.write("pytorch_model.bin", torch_zip_bytes(checkpoint.tensors));
    return import_huggingface_marian(directory.path());
  }
};

TEST_F(HuggingfaceMarianTorch, CountsWhereThereAreNoSafetensors) {
  auto torch = import_torch();
  ASSERT_TRUE(torch) << torch.error().message;
  EXPECT_EQ(torch->path(), directory.path() + "/pytorch_model.bin");
  std::filesystem::remove(torch->path());
  auto weight = torch->linear("model.decoder.layers.1.fc1");
  ASSERT_TRUE(weight) << "weights outlive their file";
  auto twin = import();
  ASSERT_TRUE(twin);
  EXPECT_EQ(weight->weight, twin->linear("model.decoder.layers.1.fc1")->weight);
  directory.write("pytorch_model.bin", "damaged");
  EXPECT_TRUE(import_huggingface_marian(directory.path())) << "model.safetensors comes first";
}

TEST_F(HuggingfaceMarianTorch, TiedTablesMayBeThereOnceOrInCopies) {
  set_tables({{kShared, 1}, {kEncoder, 1}, {kDecoder, 1}, {kOutput, 1}});
  checkpoint.tensors["model.encoder.embed_positions.weight"] = small_f32({5, 8}, 9);
  auto copies = import_torch();
  ASSERT_TRUE(copies) << copies.error().message;
  EXPECT_EQ(copies->tables().output_weight, kShared);
  EXPECT_TRUE(copies->embeddings_are_shared());
  EXPECT_EQ(copies->encoder_positions().value().at(0), 9.0f);
  set_tables({{kDecoder, 1}});
  auto once = import_torch();
  ASSERT_TRUE(once) << once.error().message;
  EXPECT_EQ(once->tables().encoder_embedding, kDecoder);
}

TEST_F(HuggingfaceMarianTorch, IsCheckedAsSafetensorsAre) {
  auto refuses_torch = [&](ErrorCode code, std::vector<std::string> parts) {
    parts.push_back(directory.path() + "/pytorch_model.bin: ");
    expect_error(import_torch(), code, parts);
    checkpoint = SmallCheckpoint();
  };
  checkpoint.tensors.erase("model.encoder.layers.0.fc1.bias");
  refuses_torch(ErrorCode::kBadInput, {"model.encoder.layers.0.fc1.bias is missing"});
  checkpoint.tensors["model.encoder.layers.1.fc1.bias"] = small_f32({6});
  refuses_torch(ErrorCode::kBadInput, {"\"model.encoder.layers.1.fc1.bias\"", "has no place"});
  checkpoint.tensors["model.encoder.layers.0.fc1.bias"] = small_f32({7});
  refuses_torch(ErrorCode::kBadInput, {"has shape [7], expected [6]"});
  checkpoint.tensors["model.encoder.layers.0.fc1.bias"] = {"F64", {6}, std::string(48, '\0')};
  refuses_torch(ErrorCode::kUnsupported, {"has dtype F64, expected F32, F16 or BF16"});
}

TEST_F(HuggingfaceMarianTorch, AGitLfsPointerIsExplained) {
  ASSERT_TRUE(import_torch());
  directory.write("pytorch_model.bin",
                  "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 310020341\n");
  expect_error(import_huggingface_marian(directory.path()), ErrorCode::kBadInput,
               {"/pytorch_model.bin: is a Git LFS pointer; the real file has 310,020,341 bytes"});
}

// ---- real files ----

TEST(HuggingfaceMarianFiles, SmallAHasOneTableForAll) {
  auto imported = import_huggingface_marian(kGolden + "small-a/model");
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->tables().encoder_embedding, kShared);
  EXPECT_EQ(imported->tables().decoder_embedding, kShared);
  EXPECT_EQ(imported->tables().output_weight, kShared);
  EXPECT_EQ(imported->config().activation, MarianActivation::kGelu);
  EXPECT_EQ(imported->config().suppressed_ids, std::vector<uint32_t>{694});
  EXPECT_EQ(imported->config().num_beams, 4u);
  EXPECT_EQ(imported->config().max_length, 64u);
}

TEST(HuggingfaceMarianFiles, SmallBTiesItsOutputToTheDecoder) {
  auto imported = import_huggingface_marian(kGolden + "small-b/model");
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->tables().encoder_embedding, kEncoder);
  EXPECT_EQ(imported->tables().decoder_embedding, kDecoder);
  EXPECT_EQ(imported->tables().output_weight, kDecoder);
  EXPECT_EQ(imported->stored().at(kDecoder).type, StoredType::kBF16);
  EXPECT_FALSE(imported->config().scale_embedding);
}

TEST(HuggingfaceMarianFiles, SmallCKeepsThreeTablesApart) {
  auto imported = import_huggingface_marian(kGolden + "small-c/model");
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->tables().encoder_embedding, kEncoder);
  EXPECT_EQ(imported->tables().decoder_embedding, kDecoder);
  EXPECT_EQ(imported->tables().output_weight, kOutput);
  EXPECT_EQ(imported->stored().at(kOutput).type, StoredType::kF16);
  EXPECT_EQ(imported->config().encoder_heads, 4u);
  EXPECT_EQ(imported->config().decoder_heads, 2u);
}

TEST(HuggingfaceMarianFiles, TheShippedModelImports) {
  auto imported = import_huggingface_marian(DUET_ASSETS "/tatoeba-en-fr");
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->tables().output_weight, kShared);
  EXPECT_EQ(imported->config().vocabulary_size, 11224u);
  EXPECT_EQ(imported->config().max_length, 512u);
}

TEST(HuggingfaceMarianFiles, EveryStoredWeightIsFinite) {
  for (const std::string& path : {kGolden + "small-a/model", kGolden + "small-b/model",
                                  kGolden + "small-c/model", std::string(DUET_ASSETS "/tatoeba-en-fr")}) {
    auto imported = import_huggingface_marian(path);
    ASSERT_TRUE(imported) << imported.error().message;
    for (const auto& [name, stored] : imported->stored()) {
      auto values = imported->tensor(name);
      ASSERT_TRUE(values) << values.error().message;
      EXPECT_EQ(values->size(), element_count(stored.shape));
    }
  }
}

// The golden layers hold what the reference's modules returned: [1, tokens, d_model], float32.
struct GoldenCase {
  std::string model;
  std::string directory;
};

std::vector<GoldenCase> golden_cases() {
  return {{"small-a", kGolden + "small-a/model"},
          {"small-b", kGolden + "small-b/model"},
          {"small-c", kGolden + "small-c/model"},
          {"tatoeba-en-fr", DUET_ASSETS "/tatoeba-en-fr"}};
}

int ulps_between(float a, float b) {
  int steps = 0;
  for (; a != b && steps < 100; ++steps) a = std::nextafter(a, b);
  return steps;
}

TEST(HuggingfaceMarianFiles, ComputedPositionsAreTheReferences) {
  size_t compared = 0, different = 0;  // none differs with glibc 2.36; another libm may round otherwise
  for (const GoldenCase& golden : golden_cases()) {
    auto imported = import_huggingface_marian(golden.directory);
    auto layers = SafetensorsFile::open(kGolden + golden.model + "/layers.safetensors");
    ASSERT_TRUE(imported && layers);
    uint64_t d_model = imported->config().d_model;
    std::vector<float> table = imported->encoder_positions().value();
    for (const auto& [name, tensor] : layers->tensors()) {
      if (!name.ends_with("embed_positions")) continue;
      std::vector<float> expected = to_finite_floats(tensor, layers->path(), name).value();
      ASSERT_LE(expected.size(), table.size());
      ASSERT_EQ(expected.size() % d_model, 0u);
      for (size_t i = 0; i < expected.size(); ++i, ++compared) {
        ASSERT_LE(ulps_between(table[i], expected[i]), 1) << golden.model << " " << name << " element " << i;
        different += table[i] != expected[i];
      }
    }
  }
  EXPECT_GT(compared, 1000u);
  RecordProperty("positions_compared", static_cast<int>(compared));
  RecordProperty("positions_different", static_cast<int>(different));
}

// model.*.embed_tokens returned a row of the table for every token: the row's bits tell which table the
// reference used.
TEST(HuggingfaceMarianFiles, EmbeddedTokensComeFromTheResolvedTables) {
  for (const GoldenCase& golden : golden_cases()) {
    auto imported = import_huggingface_marian(golden.directory);
    auto layers = SafetensorsFile::open(kGolden + golden.model + "/layers.safetensors");
    ASSERT_TRUE(imported && layers);
    uint64_t d_model = imported->config().d_model;
    auto expect_rows = [&](const std::string& module, const std::vector<float>& table) {
      size_t found = 0;
      for (const auto& [name, tensor] : layers->tensors()) {
        if (!name.ends_with(module)) continue;
        std::vector<float> rows = to_finite_floats(tensor, layers->path(), name).value();
        for (size_t row = 0; row < rows.size(); row += d_model, ++found) {
          bool in_table = false;
          for (size_t id = 0; id < table.size() && !in_table; id += d_model)
            in_table = std::memcmp(&rows[row], &table[id], d_model * sizeof(float)) == 0;
          EXPECT_TRUE(in_table) << golden.model << " " << name << " row " << row / d_model;
        }
      }
      EXPECT_GT(found, 0u) << golden.model << " " << module;
    };
    expect_rows("encoder.embed_tokens", imported->encoder_embedding().value());
    expect_rows("decoder.embed_tokens", imported->decoder_embedding().value());
  }
}

}  // namespace
}  // namespace duet::model
