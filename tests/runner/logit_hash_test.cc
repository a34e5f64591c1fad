// The bits of the logits themselves, kept as constants: the same on every instruction set, and the same when
// compilers optimize everything or nothing (this file is built twice). Constants change only when the
// arithmetic is meant to.
#include <cstdio>

#include "tests/runner/decoding.h"

namespace duet::runner {
namespace {

// FNV-1a, 64 bits.
void add_to_hash(uint64_t& hash, std::span<const std::byte> bytes) {
  for (std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3;
}

struct Expected {
  std::string model;
  uint64_t hash;
};
void PrintTo(const Expected& expected, std::ostream* out) { *out << expected.model; }

class LogitHashTest : public testing::TestWithParam<Expected> {};

// Prefill and three more steps of a batch of three sentences.
uint64_t hash_first_steps(const std::string& model) {
  model::SessionOptions options;
  options.limits = {{"slots", 3}};
  auto runner = EncoderDecoderRunner::create(golden::program(model, true), options);
  EXPECT_TRUE(runner) << runner.error().message;
  auto sentences = golden::sentences(model);
  std::vector<EncoderDecoderRunner::Row> rows;
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < 3; ++slot) {
    rows.push_back({slot, sentences[static_cast<size_t>(20 + 11 * slot)].source_ids, {}, 48});
    slots.push_back(slot);
  }
  uint64_t hash = 0xcbf29ce484222325;
  auto add_outputs = [&](const char* method) {
    for (const model::TensorView& output : runner->session().outputs(runner->session().find_method(method)))
      add_to_hash(hash, {output.data, output.bytes()});
    EXPECT_EQ(runner->session().outputs(runner->session().find_method(method)).size(), 4u);
  };
  auto choices = runner->prefill(rows);
  EXPECT_TRUE(choices) << choices.error().message;
  add_outputs("reset_encode_prefill");
  for (int step = 0; step < 3; ++step) {
    choices = runner->decode(slots);
    EXPECT_TRUE(choices) << choices.error().message;
    if (choices) add_outputs("decode");
  }
  return hash;
}

TEST_P(LogitHashTest, TheFirstStepsGiveTheKnownBitsOnEveryInstructionSet) {
  KernelsInUse before;
  for (auto* table = model::kernels::available_kernels(); *table; ++table) {
    model::kernels::force_kernels(**table);
    uint64_t hash = hash_first_steps(GetParam().model);
    char text[32];
    std::snprintf(text, sizeof text, "0x%016llx", static_cast<unsigned long long>(hash));
    EXPECT_EQ(hash, GetParam().hash) << (*table)->name << " kernels gave " << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LogitHashTest,
                         testing::Values(Expected{"small-a", 0x98b5a3a3381480f7},
                                         Expected{"small-b", 0xbe8d048afd1d7d10},
                                         Expected{"small-c", 0x195cd6bb3cc53fa5},
                                         Expected{"tatoeba-en-fr", 0x06192789fcde87ac}),
                         [](const auto& test) {
                           std::string name = test.param.model;
                           for (char& c : name)
                             if (c == '-') c = '_';
                           return name;
                         });

}  // namespace
}  // namespace duet::runner
