// The reference's numbers (tests/golden, and ../shared/golden where it stands beside the project), and
// programs made from the models that they were made with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/program.h"
#include "model/session.h"

namespace duet::runner::golden {

inline const std::vector<std::string> kModels = {"small-a", "small-b", "small-c", "tatoeba-en-fr"};

// The program of a model, converted once per test process. `logits`: with the methods' extra output.
std::shared_ptr<const model::Program> program(const std::string& model, bool logits = false);

struct Sentence {
  std::string source, translation;
  std::vector<int32_t> source_ids, target_ids;
  std::vector<double> token_logprobs;
  bool cut_at_limit = false;
  double min_top2_gap = 0;
};
std::vector<Sentence> sentences(const std::string& model);
// Most target tokens that the reference was allowed.
int32_t target_limit(const std::string& model);

struct LayerCase {
  std::vector<int32_t> source_ids, decoder_ids;
  struct Values {
    std::vector<int64_t> dims;
    std::vector<float> data;
  };
  std::map<std::string, Values> outputs;  // by module name, "logits" among them
};
std::vector<LayerCase> layer_cases(const std::string& model);

// A directory that goes when the process ends.
const std::filesystem::path& scratch_directory();

}  // namespace duet::runner::golden
