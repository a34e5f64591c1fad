#include "model/importers/huggingface_config.h"

#include <gtest/gtest.h>

#include "tests/model/importers/small_checkpoint.h"

namespace duet::model {
namespace {

using nlohmann::json;

class HuggingfaceConfig : public testing::Test {
 protected:
  Result<MarianConfig> read() {
    checkpoint.write(directory);
    return read_huggingface_config(directory.path());
  }

  MarianConfig read_good() {
    auto config = read();
    EXPECT_TRUE(config) << config.error().message;
    return config.value_or(MarianConfig{});
  }

  // One field of config.json spoiled: the message names file, field and value.
  void refuses(const char* field, const json& value, ErrorCode code, const std::string& expected) {
    refuses_in("/config.json", checkpoint.config, field, value, code, expected);
  }

  // Likewise in generation_config.json.
  void refuses_decoding(const char* field, const json& value, ErrorCode code, const std::string& expected) {
    refuses_in("/generation_config.json", checkpoint.generation, field, value, code, expected);
  }

  TemporaryDirectory directory;
  SmallCheckpoint checkpoint;

 private:
  void refuses_in(const std::string& file, json& object, const char* field, const json& value, ErrorCode code,
                  const std::string& expected) {
    SCOPED_TRACE(std::string(field) + " " + value.dump());
    json before = object;
    object[field] = value;
    std::string shown = value.is_structured() || value.is_null() ? "" : value.dump();
    expect_error(read(), code, {directory.path() + file + ": ", field, shown, expected});
    object = before;
  }
};

TEST_F(HuggingfaceConfig, EveryFieldIsRead) {
  MarianConfig config = read_good();
  EXPECT_EQ(config.d_model, 8u);
  EXPECT_EQ(config.encoder_layers, 1u);
  EXPECT_EQ(config.decoder_layers, 2u);
  EXPECT_EQ(config.encoder_heads, 2u);
  EXPECT_EQ(config.decoder_heads, 4u);
  EXPECT_EQ(config.encoder_ffn_dim, 6u);
  EXPECT_EQ(config.decoder_ffn_dim, 10u);
  EXPECT_EQ(config.max_position_embeddings, 5u);
  EXPECT_EQ(config.vocabulary_size, 12u);
  EXPECT_EQ(config.decoder_vocabulary_size, 12u);
  EXPECT_EQ(config.activation, MarianActivation::kSwish);
  EXPECT_TRUE(config.scale_embedding);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.share_encoder_decoder_embeddings);
  EXPECT_EQ(config.pad_id, 11u);
  EXPECT_EQ(config.eos_id, 0u);
  EXPECT_EQ(config.decoder_start_id, 11u);
  EXPECT_EQ(config.forced_eos_id, 0u);
  EXPECT_EQ(config.suppressed_ids, std::vector<uint32_t>{11});
  EXPECT_EQ(config.max_length, 64u);
  EXPECT_EQ(config.num_beams, 4u);
  EXPECT_EQ(config.length_penalty, 1.0);
  EXPECT_EQ(config.early_stopping, EarlyStopping::kHeuristic);
  EXPECT_FALSE(config.renormalize_logits);
}

TEST_F(HuggingfaceConfig, AbsentAndNullFieldsTakeTheReferencesDefaults) {
  checkpoint.config = {{"model_type", "marian"}, {"d_model", nullptr}, {"scale_embedding", nullptr}};
  checkpoint.generation = {{"eos_token_id", 0}, {"decoder_start_token_id", 58100}, {"max_length", nullptr}};
  MarianConfig config = read_good();
  EXPECT_EQ(config.d_model, 1024u);
  EXPECT_EQ(config.encoder_layers, 12u);
  EXPECT_EQ(config.decoder_layers, 12u);
  EXPECT_EQ(config.encoder_heads, 16u);
  EXPECT_EQ(config.decoder_heads, 16u);
  EXPECT_EQ(config.encoder_ffn_dim, 4096u);
  EXPECT_EQ(config.decoder_ffn_dim, 4096u);
  EXPECT_EQ(config.max_position_embeddings, 1024u);
  EXPECT_EQ(config.vocabulary_size, 58101u);
  EXPECT_EQ(config.decoder_vocabulary_size, 58101u);
  EXPECT_EQ(config.activation, MarianActivation::kGelu);
  EXPECT_FALSE(config.scale_embedding);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.share_encoder_decoder_embeddings);
  EXPECT_EQ(config.pad_id, 0u);  // </s> stands in, as in the reference's generate()
  EXPECT_FALSE(config.forced_eos_id);
  EXPECT_TRUE(config.suppressed_ids.empty());
  EXPECT_FALSE(config.max_length);
  EXPECT_EQ(config.num_beams, 1u);
}

TEST_F(HuggingfaceConfig, ADecoderVocabularyOfNoneOrZeroIsTheSources) {
  checkpoint.config.erase("decoder_vocab_size");
  EXPECT_EQ(read_good().decoder_vocabulary_size, 12u);
  checkpoint.config["decoder_vocab_size"] = 0;
  EXPECT_EQ(read_good().decoder_vocabulary_size, 12u);
}

TEST_F(HuggingfaceConfig, ActivationsHaveTheirAliases) {
  const std::pair<const char*, MarianActivation> names[] = {{"relu", MarianActivation::kRelu},
                                                            {"gelu", MarianActivation::kGelu},
                                                            {"gelu_python", MarianActivation::kGelu},
                                                            {"swish", MarianActivation::kSwish},
                                                            {"silu", MarianActivation::kSwish}};
  for (auto [name, activation] : names) {
    checkpoint.config["activation_function"] = name;
    EXPECT_EQ(read_good().activation, activation) << name;
  }
  refuses("activation_function", "gelu_new", ErrorCode::kUnsupported, "expected relu, gelu, swish or silu");
  refuses("activation_function", 3, ErrorCode::kBadInput, "a string");
}

TEST_F(HuggingfaceConfig, AnotherModelTypeIsRefused) {
  refuses("model_type", "bart", ErrorCode::kUnsupported, "expected \"marian\"");
  refuses("model_type", json(), ErrorCode::kUnsupported, "is missing, expected \"marian\"");
  refuses("architectures", {"MarianForCausalLM"}, ErrorCode::kUnsupported,
          "[\"MarianForCausalLM\"], expected [\"MarianMTModel\"]");
}

TEST_F(HuggingfaceConfig, VariantsThatTheReferenceDoesNotHaveAreRefused) {
  refuses("normalize_before", true, ErrorCode::kUnsupported, "expected false");
  refuses("normalize_embedding", true, ErrorCode::kUnsupported, "expected false");
  refuses("add_final_layer_norm", true, ErrorCode::kUnsupported, "expected false");
  refuses("static_position_embeddings", false, ErrorCode::kUnsupported, "expected true");
  refuses("is_encoder_decoder", false, ErrorCode::kUnsupported, "expected true");
  refuses("is_decoder", true, ErrorCode::kUnsupported, "expected false");
  refuses("tie_encoder_decoder", true, ErrorCode::kUnsupported, "expected false");
  refuses("quantization_config", {{"bits", 4}}, ErrorCode::kUnsupported,
          "an object of 1 fields, expected none");
  refuses("normalize_before", 0, ErrorCode::kBadInput, "true or false");
}

TEST_F(HuggingfaceConfig, AddBiasLogitsIsIgnoredAsByTheReference) {
  checkpoint.config["add_bias_logits"] = true;
  read_good();
}

TEST_F(HuggingfaceConfig, SizesMustBeSensibleIntegers) {
  for (const char* field :
       {"d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads",
        "encoder_ffn_dim", "decoder_ffn_dim", "max_position_embeddings", "vocab_size"})
    for (const json& value :
         {json(-8), json(0), json(8.0), json("8"), json(true), json(uint64_t{1} << 21), json(UINT64_MAX)})
      refuses(field, value, ErrorCode::kBadInput, "expected an integer from 1 to ");
  refuses("encoder_layers", 257, ErrorCode::kBadInput, "1 to 256");
  refuses("max_position_embeddings", 65537, ErrorCode::kBadInput, "1 to 65536");
  refuses("decoder_vocab_size", -1, ErrorCode::kBadInput, "an integer from 0 to 1048576");
}

TEST_F(HuggingfaceConfig, HeadsMustDivideAnEvenModelSize) {
  refuses("encoder_attention_heads", 3, ErrorCode::kBadInput, "a divisor of d_model = 8");
  refuses("decoder_attention_heads", 16, ErrorCode::kBadInput, "a divisor of d_model = 8");
  refuses("d_model", 9, ErrorCode::kUnsupported, "an even number");
}

TEST_F(HuggingfaceConfig, AliasesOfAttributesMustAgree) {
  checkpoint.config["num_hidden_layers"] = 1;
  checkpoint.config["hidden_size"] = 8;
  read_good();
  refuses("num_hidden_layers", 2, ErrorCode::kBadInput, "expected 1 as in encoder_layers");
  checkpoint.config.erase("encoder_layers");
  EXPECT_EQ(read_good().encoder_layers, 1u);
}

TEST_F(HuggingfaceConfig, SharedEmbeddingsNeedOneVocabularySize) {
  refuses("decoder_vocab_size", 13, ErrorCode::kBadInput,
          "vocab_size = 12, since share_encoder_decoder_embeddings is true");
  checkpoint.config["share_encoder_decoder_embeddings"] = false;
  checkpoint.config["decoder_vocab_size"] = 14;
  EXPECT_EQ(read_good().decoder_vocabulary_size, 14u);
}

TEST_F(HuggingfaceConfig, IdsMustLieInTheVocabulary) {
  for (const char* field : {"pad_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id"})
    for (const json& value : {json(12), json(-1), json("</s>"), json(1.0)})
      refuses_decoding(field, value, ErrorCode::kBadInput, "an id below the target vocabulary's 12");
  refuses_decoding("eos_token_id", {0, 5}, ErrorCode::kUnsupported, "[0, 5], expected a single id");
  refuses("pad_token_id", 12, ErrorCode::kBadInput, "0 to 11");
  checkpoint.generation["eos_token_id"] = {3};
  EXPECT_EQ(read_good().eos_id, 3u);
}

TEST_F(HuggingfaceConfig, EndAndStartOfATranslationAreRequired) {
  refuses_decoding("eos_token_id", json(), ErrorCode::kBadInput, "eos_token_id is missing");
  refuses_decoding("decoder_start_token_id", json(), ErrorCode::kBadInput,
                   "decoder_start_token_id is missing");
  checkpoint.generation.erase("decoder_start_token_id");
  checkpoint.generation["bos_token_id"] = 7;
  EXPECT_EQ(read_good().decoder_start_id, 7u);
}

TEST_F(HuggingfaceConfig, TheGenerationFileAloneCountsForDecoding) {
  checkpoint.config["num_beams"] = 6;
  checkpoint.config["forced_eos_token_id"] = 0;
  checkpoint.config["repetition_penalty"] = 2.0;
  checkpoint.generation.erase("num_beams");
  checkpoint.generation.erase("forced_eos_token_id");
  checkpoint.generation["eos_token_id"] = 3;
  MarianConfig config = read_good();
  EXPECT_EQ(config.num_beams, 1u);
  EXPECT_FALSE(config.forced_eos_id);
  EXPECT_EQ(config.eos_id, 3u);
}

TEST_F(HuggingfaceConfig, WithoutAGenerationFileTheModelsOwnFieldsCount) {
  checkpoint.generation = nullptr;
  checkpoint.config.update(
      {{"num_beams", 6}, {"bad_words_ids", {{11}}}, {"max_length", 99}, {"forced_eos_token_id", 0}});
  MarianConfig config = read_good();
  EXPECT_EQ(config.num_beams, 6u);
  EXPECT_EQ(config.max_length, 99u);
  EXPECT_EQ(config.eos_id, 0u);
  EXPECT_EQ(config.decoder_start_id, 11u);
  EXPECT_EQ(config.forced_eos_id, 0u);
  EXPECT_EQ(config.suppressed_ids, std::vector<uint32_t>{11});
  refuses("repetition_penalty", 1.5, ErrorCode::kUnsupported, "expected 1");
  refuses("force_bos_token_to_be_generated", true, ErrorCode::kUnsupported, "expected false");
}

TEST_F(HuggingfaceConfig, DecodingThatDuetDoesNotDoIsRefused) {
  for (const char* field : {"repetition_penalty", "encoder_repetition_penalty", "guidance_scale"})
    refuses_decoding(field, 1.25, ErrorCode::kUnsupported, "expected 1");
  for (const char* field :
       {"no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"})
    refuses_decoding(field, 3, ErrorCode::kUnsupported, "expected 0");
  for (const char* field : {"num_beam_groups", "num_return_sequences"})
    refuses_decoding(field, 2, ErrorCode::kUnsupported, "expected 1");
  refuses_decoding("diversity_penalty", 0.5, ErrorCode::kUnsupported, "expected 0");
  refuses_decoding("penalty_alpha", 0.5, ErrorCode::kUnsupported, "expected 0");
  refuses_decoding("do_sample", true, ErrorCode::kUnsupported, "expected false");
  refuses_decoding("forced_bos_token_id", 5, ErrorCode::kUnsupported, "expected none");
  refuses_decoding("suppress_tokens", {1, 2}, ErrorCode::kUnsupported, "[1, 2], expected none");
  refuses_decoding("begin_suppress_tokens", {1}, ErrorCode::kUnsupported, "[1], expected none");
  refuses_decoding("sequence_bias", {{{1}, 2.0}}, ErrorCode::kUnsupported, "expected none");
  refuses_decoding("exponential_decay_length_penalty", {5, 1.1}, ErrorCode::kUnsupported,
                   "[5, 1.1], expected none");
  refuses_decoding("force_words_ids", {{5}}, ErrorCode::kUnsupported, "[[5]], expected none");
  refuses_decoding("dola_layers", "low", ErrorCode::kUnsupported, "expected none");
  refuses_decoding("stop_strings", "x", ErrorCode::kUnsupported, "expected none");
  refuses_decoding("repetition_penalty", "1", ErrorCode::kBadInput, "a number");
}

TEST_F(HuggingfaceConfig, NeutralDecodingFieldsAreAccepted) {
  checkpoint.generation.update(json::parse(
      R"({"repetition_penalty": 1, "guidance_scale": 1.0, "min_length": 0, "do_sample": false, "suppress_tokens": [],
          "sequence_bias": null, "temperature": 0.7, "top_k": 10, "forced_bos_token_id": null})"));
  read_good();
}

TEST_F(HuggingfaceConfig, BadWordsAreSingleIds) {
  checkpoint.generation["bad_words_ids"] = {{11}, {4}, {0}, {4}};
  EXPECT_EQ(read_good().suppressed_ids,
            (std::vector<uint32_t>{4, 11}));  // without </s>, which the reference ignores
  refuses_decoding("bad_words_ids", {{11}, {1, 2}}, ErrorCode::kUnsupported,
                   "the phrase [1, 2], expected phrases of one token");
  refuses_decoding("bad_words_ids", {{12}}, ErrorCode::kBadInput, "[12]");
  refuses_decoding("bad_words_ids", {{-1}}, ErrorCode::kBadInput, "[-1]");
  refuses_decoding("bad_words_ids", json::parse("[[]]"), ErrorCode::kBadInput,
                   "[[]], expected a list of lists");
  refuses_decoding("bad_words_ids", 5, ErrorCode::kBadInput, "5, expected a list of lists");
  json all = json::array();
  for (int id = 1; id < 12; ++id) all.push_back({id});
  refuses_decoding("bad_words_ids", all, ErrorCode::kBadInput, "suppresses 11 of 12");
}

TEST_F(HuggingfaceConfig, SearchDefaultsAreRead) {
  checkpoint.generation.update({{"length_penalty", 0.6},
                                {"early_stopping", "never"},
                                {"renormalize_logits", true},
                                {"max_new_tokens", 20}});
  MarianConfig config = read_good();
  EXPECT_EQ(config.length_penalty, 0.6);
  EXPECT_EQ(config.early_stopping, EarlyStopping::kNever);
  EXPECT_TRUE(config.renormalize_logits);
  EXPECT_EQ(config.max_length, 21u);
  checkpoint.generation["early_stopping"] = true;
  EXPECT_EQ(read_good().early_stopping, EarlyStopping::kFirst);
  checkpoint.generation["early_stopping"] = false;
  EXPECT_EQ(read_good().early_stopping, EarlyStopping::kHeuristic);
  refuses_decoding("early_stopping", "soon", ErrorCode::kBadInput, "true, false or \"never\"");
  refuses_decoding("num_beams", 0, ErrorCode::kBadInput, "1 to 1024");
  refuses_decoding("max_length", 0, ErrorCode::kBadInput, "1 to 1048576");
  refuses_decoding("max_length", 1e9, ErrorCode::kBadInput, "1 to 1048576");
  refuses_decoding("length_penalty", true, ErrorCode::kBadInput, "a number");
}

TEST_F(HuggingfaceConfig, FilesThatAreNoJsonObjectAreRefused) {
  auto refuses_text = [&](const std::string& text, const std::string& part) {
    std::string path = directory.write("config.json", text);
    expect_error(read_huggingface_config(directory.path()), ErrorCode::kBadInput, {path, part});
  };
  refuses_text("", "not valid JSON");
  refuses_text("{\"d_model\": 8", "not valid JSON at byte");
  refuses_text("[8]", "holds [8], expected a JSON object");
  refuses_text("{\"d_model\": 8, \"d_model\": 9}", "\"d_model\" is given twice");
  refuses_text("{\"d_model\": 1e999}", "config.json");
  refuses_text("version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer");
  refuses_text("{\"model_type\": " + std::string(100000, '[') + std::string(100000, ']') + "}", "model_type");
  refuses_text(std::string((1 << 20) + 1, ' '), "1048577 bytes");
}

TEST_F(HuggingfaceConfig, MissingFilesAreNamed) {
  expect_error(read_huggingface_config(directory.path()), ErrorCode::kIo,
               {directory.path() + "/config.json"});
  checkpoint.write(directory);
  directory.write("generation_config.json", "{");
  expect_error(read_huggingface_config(directory.path()), ErrorCode::kBadInput, {"/generation_config.json"});
}

}  // namespace
}  // namespace duet::model
