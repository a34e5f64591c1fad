// Translation method by method: what a Translator does inside, with one sentence and by hand. Shows what a
// program's methods want and give, and every step of the greedy search.
//
// usage: step_decoding PROGRAM TEXT
#include <cstdio>

#include "runner/convert.h"
#include "runner/multi_entry_point_runner.h"
#include "tokenizer/tokenizer.h"

using duet::Result;
using duet::runner::MultiEntryPointRunner;
using duet::runner::Tensor;
using duet::tokenizer::Tokenizer;
using Outputs = std::map<std::string, Tensor>;

Tensor row(const std::vector<int32_t>& values) {
  return Tensor::i32({static_cast<int64_t>(values.size())}, values);
}

Result<Tokenizer> make_tokenizer(const duet::model::Program& program) {
  return Tokenizer::create(
      {program.section(duet::runner::kSourceSpm), program.section(duet::runner::kTargetSpm),
       program.section(duet::runner::kSourceVocabulary), program.section(duet::runner::kTargetVocabulary)});
}

Result<std::string> translate(const std::string& path, const std::string& text) {
  duet::model::SessionOptions options;
  options.limits["slots"] = 1;  // one sentence at a time needs little memory
  DUET_ASSIGN(auto runner, MultiEntryPointRunner::load(path, options));
  DUET_ASSIGN(auto tokenizer, make_tokenizer(runner.program()));
  DUET_ASSIGN(auto source, tokenizer.encode(text, ""));
  const auto& metadata = runner.program().definition().metadata;
  if (!metadata.contains("decoder_start_id") || !metadata["decoder_start_id"].is_number_integer())
    return duet::failure(duet::ErrorCode::kBadInput, "{}: metadata.decoder_start_id is no number", path);
  const auto start = metadata["decoder_start_id"].get<int32_t>();

  // Encodes the sentence into the caches of slot 0 and chooses the first word.
  DUET_ASSIGN(Outputs outputs,
              runner.execute("reset_encode_prefill",
                             {{"source_tokens", row(source.ids)},
                              {"source_lengths", row({static_cast<int32_t>(source.ids.size())})},
                              {"slots", row({0})},
                              {"prompt_tokens", row({start})},
                              {"prompt_lengths", row({1})},
                              {"target_limits", row({100})}}));
  std::vector<int32_t> target;
  while (true) {
    target.push_back(outputs["tokens"].values<int32_t>()[0]);
    float score = outputs["scores"].values<float>()[0];
    std::string piece(tokenizer.target_piece(target.back()));
    std::printf("%3zu  %6d  %8.4f  %s\n", target.size(), target.back(), score, piece.c_str());
    if (outputs["finished"].values<int32_t>()[0]) break;
    DUET_ASSIGN(outputs, runner.execute("decode", {{"slots", row({0})}}));
  }
  return tokenizer.decode(target);
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: step_decoding PROGRAM TEXT\n"), 2;
  auto translation = translate(argv[1], argv[2]);
  if (!translation) std::fprintf(stderr, "step_decoding: %s\n", translation.error().message.c_str());
  if (!translation) return duet::memory::exit_code(translation.error().code);
  std::puts(translation->c_str());
}
