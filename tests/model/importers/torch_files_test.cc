// Checkpoints that torch 2.9.1 wrote from the golden models: the same weights, hence the same programs.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "memory/mapped_file.h"
#include "model/exporter.h"
#include "model/importers/huggingface_marian.h"
#include "model/importers/safetensors.h"
#include "model/importers/torch_checkpoint.h"
#include "model/marian_builder.h"
#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = DUET_TEST_DATA "/../../golden/";

struct Twin {
  const char* model;
  const char* file;
};
constexpr Twin kTwins[] = {{"small-a", "small-a-zip-tied-copies.bin"},
                           {"small-b", "small-b-zip.bin"},
                           {"small-c", "small-c-legacy.bin"}};

std::string bytes_of(const StoredTensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

TEST(TorchFiles, HoldTheTensorsOfTheirSafetensorsTwins) {
  for (const Twin& twin : kTwins) {
    SCOPED_TRACE(twin.file);
    auto torch = TorchCheckpointFile::open(kGolden + "formats/" + twin.file);
    ASSERT_TRUE(torch) << torch.error().message;
    auto twin_file = SafetensorsFile::open(kGolden + twin.model + "/model/model.safetensors");
    ASSERT_TRUE(twin_file);
    for (const auto& [name, expected] : twin_file->tensors()) {
      ASSERT_TRUE(torch->tensors().contains(name)) << name;
      const StoredTensor& tensor = torch->tensors().at(name);
      EXPECT_EQ(tensor.type, expected.type) << name;
      EXPECT_EQ(tensor.shape, expected.shape) << name;
      EXPECT_TRUE(bytes_of(tensor) == bytes_of(expected)) << name;
    }
    for (const auto& [name, tensor] : torch->tensors())
      EXPECT_TRUE(twin_file->tensors().contains(name) || name.find("embed_") != std::string::npos ||
                  name == "lm_head.weight")
          << name << " has no twin and is neither a table of positions nor a tied copy";
  }
}

// Constants by name and in order; the positions, which only the twin computes, by their value alone.
Result<std::vector<std::pair<std::string, std::string>>> constants_of(const std::string& directory) {
  DUET_ASSIGN(MarianCheckpoint checkpoint, import_huggingface_marian(directory));
  MultiEntryPointExporter exporter;
  DUET_TRY(build_marian(checkpoint, {}, exporter));
  DUET_ASSIGN(auto definition, exporter.finish());
  std::vector<std::pair<std::string, std::string>> constants;
  for (const Constant& constant : definition->constants) {
    bool positions = constant.name.find("positions") != std::string::npos;
    constants.emplace_back(
        positions ? "positions" : constant.name,
        std::string(reinterpret_cast<const char*>(constant.data.data()), constant.data.size()));
  }
  return constants;
}

TEST(TorchFiles, BecomeTheSameProgramsAsTheirTwins) {
  for (const Twin& twin : kTwins) {
    SCOPED_TRACE(twin.file);
    TemporaryDirectory directory;
    for (const char* name : {"config.json", "generation_config.json"})
      fs::copy_file(kGolden + twin.model + "/model/" + name, directory.path() + "/" + name);
    fs::copy_file(kGolden + "formats/" + twin.file, directory.path() + "/pytorch_model.bin");
    auto constants = constants_of(directory.path());
    ASSERT_TRUE(constants) << constants.error().message;
    auto expected = constants_of(kGolden + twin.model + "/model");
    ASSERT_TRUE(expected) << expected.error().message;
    ASSERT_EQ(constants->size(), expected->size());
    for (size_t i = 0; i < constants->size(); ++i) {
      EXPECT_EQ((*constants)[i].first, (*expected)[i].first);
      EXPECT_TRUE((*constants)[i].second == (*expected)[i].second) << (*constants)[i].first;
    }
  }
}

// Damage where the structure is: pickles, headers, the zip directory at the end.
TEST(TorchFiles, DamagedCopiesNeverCrash) {
  for (const Twin& twin : kTwins) {
    SCOPED_TRACE(twin.file);
    auto file = memory::read_file(kGolden + "formats/" + twin.file, 16 << 20);
    ASSERT_TRUE(file);
    int refused = 0, accepted = 0;
    for (unsigned seed = 0; seed < 500; ++seed) {
      std::mt19937 random(seed);
      std::string bytes = *file;
      for (auto change = 1 + random() % 3; change-- > 0;) {
        size_t at = random() % 16384;
        if (random() % 2 == 0) at = bytes.size() - 1 - at;
        bytes[at] = static_cast<char>(random() % 4 == 0 ? random() : bytes[at] ^ (1 << random() % 8));
      }
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      std::vector<char> exact(bytes.begin(), bytes.end());  // a sanitizer sees a read past it
      auto checkpoint = parse_torch_checkpoint("m", std::as_bytes(std::span(exact)));
      ++(checkpoint ? accepted : refused);
      if (!checkpoint) {
        ASSERT_FALSE(checkpoint.error().message.empty());
        continue;
      }
      for (const auto& [name, tensor] : checkpoint->tensors)
        ASSERT_EQ(tensor.bytes.size(), stored_bytes(tensor.type, tensor.shape)) << name;
    }
    EXPECT_GT(refused, 150);
    EXPECT_GT(accepted, 10);
  }
}

}  // namespace
}  // namespace duet::model
