// config.json and generation_config.json: the same bytes as both, and each beside a sound other one.
#include <filesystem>

#include "model/importers/huggingface_config.h"
#include "tests/fuzz/fuzz.h"

namespace {

constexpr const char* kSound =
    R"({"model_type":"marian","d_model":8,"encoder_layers":1,"decoder_layers":1,"encoder_attention_heads":2,)"
    R"("decoder_attention_heads":2,"encoder_ffn_dim":8,"decoder_ffn_dim":8,"activation_function":"relu",)"
    R"("vocab_size":12,"pad_token_id":11,"eos_token_id":0,"decoder_start_token_id":11,)"
    R"("max_position_embeddings":5,"scale_embedding":true})";

struct Directory {
  duet::fuzz::MemoryFile config, generation;
  Directory() {
    std::filesystem::create_symlink(config.path(), path() + "/config.json");
    std::filesystem::create_symlink(generation.path(), path() + "/generation_config.json");
  }
  const std::string& path() const { return duet::fuzz::scratch_directory(); }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Directory directory;
  std::string_view text = duet::fuzz::text_of(data, size);
  directory.config.set(text);
  directory.generation.set(text);
  (void)duet::model::read_huggingface_config(directory.path());
  directory.config.set(kSound);
  (void)duet::model::read_huggingface_config(directory.path());
  return 0;
}
