// config.json and generation_config.json -> MarianConfig.
#include "model/importers/huggingface_config.h"

#include <algorithm>
#include <filesystem>

#include "model/importers/json_file.h"

namespace duet::model {
namespace {

constexpr uint64_t kMaxDimension = 1 << 20;
constexpr uint64_t kMaxLayers = 256;
constexpr uint64_t kMaxPositions = 1 << 16;  // a table may have to be computed: no file size bounds it

// ---- config.json: the model ----

struct SizeField {
  uint32_t MarianConfig::*member;
  const char* name;
  const char* alias;  // transformers' attribute_map: another name of the same attribute, or null
  uint32_t otherwise;
  uint64_t max;
};

constexpr SizeField kSizes[] = {
    {&MarianConfig::d_model, "d_model", "hidden_size", 1024, kMaxDimension},
    {&MarianConfig::encoder_layers, "encoder_layers", "num_hidden_layers", 12, kMaxLayers},
    {&MarianConfig::decoder_layers, "decoder_layers", nullptr, 12, kMaxLayers},
    {&MarianConfig::encoder_heads, "encoder_attention_heads", "num_attention_heads", 16, kMaxDimension},
    {&MarianConfig::decoder_heads, "decoder_attention_heads", nullptr, 16, kMaxDimension},
    {&MarianConfig::encoder_ffn_dim, "encoder_ffn_dim", nullptr, 4096, kMaxDimension},
    {&MarianConfig::decoder_ffn_dim, "decoder_ffn_dim", nullptr, 4096, kMaxDimension},
    {&MarianConfig::max_position_embeddings, "max_position_embeddings", nullptr, 1024, kMaxPositions},
    {&MarianConfig::vocabulary_size, "vocab_size", nullptr, 58101, kMaxDimension},
};

struct RequiredFlag {
  const char* name;
  bool value;
  bool otherwise;  // what counts when it is absent
};

// Variants of the architecture that the reference implementation does not have.
constexpr RequiredFlag kRequiredFlags[] = {
    {"normalize_before", false, false},     {"normalize_embedding", false, false},
    {"add_final_layer_norm", false, false}, {"static_position_embeddings", true, true},
    {"is_encoder_decoder", true, true},     {"is_decoder", false, false},
    {"tie_encoder_decoder", false, false},
};

Status check_architecture(const JsonObject& file) {
  DUET_ASSIGN(auto type, file.text("model_type"));
  if (type != "marian") return file.refuse(ErrorCode::kUnsupported, "model_type", "\"marian\"");
  if (const auto* names = file.find("architectures"))
    if (!names->is_array() || std::find(names->begin(), names->end(), "MarianMTModel") == names->end())
      return file.refuse(ErrorCode::kUnsupported, "architectures", "[\"MarianMTModel\"]");
  for (const RequiredFlag& required : kRequiredFlags) {
    DUET_ASSIGN(auto value, file.flag(required.name));
    if (value.value_or(required.otherwise) != required.value)
      return file.refuse(ErrorCode::kUnsupported, required.name, required.value ? "true" : "false");
  }
  for (const char* name : {"quantization_config", "per_layer_config"})
    if (file.has(name)) return file.refuse(ErrorCode::kUnsupported, name, "none");
  return {};
}

Status read_sizes(const JsonObject& file, MarianConfig& config) {
  for (const SizeField& field : kSizes) {
    DUET_ASSIGN(auto size, file.integer(field.name, 1, field.max));
    if (field.alias) {
      DUET_ASSIGN(auto same, file.integer(field.alias, 1, field.max));
      if (size && same && *size != *same)
        return file.refuse(ErrorCode::kBadInput, field.alias, fmt::format("{} as in {}", *size, field.name));
      if (!size) size = same;
    }
    config.*field.member = static_cast<uint32_t>(size.value_or(field.otherwise));
  }
  DUET_ASSIGN(auto target,
              file.integer("decoder_vocab_size", 0, kMaxDimension));  // 0 is "as the source" to the reference
  config.decoder_vocabulary_size =
      target.value_or(0) ? static_cast<uint32_t>(*target) : config.vocabulary_size;

  if (config.d_model % 2 != 0) return file.refuse(ErrorCode::kUnsupported, "d_model", "an even number");
  for (auto [name, heads] : {std::pair("encoder_attention_heads", config.encoder_heads),
                             std::pair("decoder_attention_heads", config.decoder_heads)})
    if (config.d_model % heads != 0)
      return file.refuse(ErrorCode::kBadInput, name,
                         fmt::format("a divisor of d_model = {}", config.d_model));
  return {};
}

Status read_activation(const JsonObject& file, MarianConfig& config) {
  DUET_ASSIGN(auto name, file.text("activation_function"));
  if (!name || *name == "gelu" || *name == "gelu_python") {
    config.activation = MarianActivation::kGelu;
  } else if (*name == "swish" || *name == "silu") {
    config.activation = MarianActivation::kSwish;
  } else if (*name == "relu") {
    config.activation = MarianActivation::kRelu;
  } else {
    return file.refuse(ErrorCode::kUnsupported, "activation_function", "relu, gelu, swish or silu");
  }
  return {};
}

Status read_embedding_rules(const JsonObject& file, MarianConfig& config) {
  DUET_ASSIGN(auto scale, file.flag("scale_embedding"));
  DUET_ASSIGN(auto tie, file.flag("tie_word_embeddings"));
  DUET_ASSIGN(auto share, file.flag("share_encoder_decoder_embeddings"));
  config.scale_embedding = scale.value_or(false);
  config.tie_word_embeddings = tie.value_or(true);
  config.share_encoder_decoder_embeddings = share.value_or(true);
  if (config.share_encoder_decoder_embeddings && config.decoder_vocabulary_size != config.vocabulary_size)
    return file.refuse(ErrorCode::kBadInput, "decoder_vocab_size",
                       fmt::format("vocab_size = {}, since share_encoder_decoder_embeddings is true",
                                   config.vocabulary_size));
  // The embeddings' padding row: it changes nothing here, but the reference refuses one outside the tables.
  uint32_t rows = std::min(config.vocabulary_size, config.decoder_vocabulary_size);
  DUET_TRY(file.integer("pad_token_id", 0, rows - 1));
  return {};
}

// ---- generation_config.json: decoding ----

struct NeutralNumber {
  const char* name;
  double value;
};

// Fields of GenerationConfig that change what a search yields, with the value that changes nothing.
constexpr NeutralNumber kNeutralNumbers[] = {
    {"repetition_penalty", 1},   {"encoder_repetition_penalty", 1},
    {"no_repeat_ngram_size", 0}, {"encoder_no_repeat_ngram_size", 0},
    {"min_length", 0},           {"min_new_tokens", 0},
    {"guidance_scale", 1},       {"num_beam_groups", 1},
    {"diversity_penalty", 0},    {"penalty_alpha", 0},
    {"num_return_sequences", 1},
};
constexpr const char* kNeutralWhenFalse[] = {"do_sample", "force_bos_token_to_be_generated", "token_healing"};
constexpr const char* kNeutralWhenAbsent[] = {
    "forced_bos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "exponential_decay_length_penalty",
    "watermarking_config",
    "constraints",
    "force_words_ids",
    "dola_layers",
    "stop_strings",
    "max_time",
};

Status refuse_unsupported_decoding(const JsonObject& file) {
  for (const NeutralNumber& neutral : kNeutralNumbers) {
    DUET_ASSIGN(auto value, file.number(neutral.name));
    if (value.value_or(neutral.value) != neutral.value)
      return file.refuse(ErrorCode::kUnsupported, neutral.name, fmt::format("{}", neutral.value));
  }
  for (const char* name : kNeutralWhenFalse) {
    DUET_ASSIGN(auto value, file.flag(name));
    if (value.value_or(false)) return file.refuse(ErrorCode::kUnsupported, name, "false");
  }
  for (const char* name : kNeutralWhenAbsent)
    if (const auto* value = file.find(name); value && !(value->is_structured() && value->empty()))
      return file.refuse(ErrorCode::kUnsupported, name, "none");
  return {};
}

// A token id; a list of one counts as its element.
Result<std::optional<uint32_t>> read_id(const JsonObject& file, const char* name, uint32_t vocabulary_size) {
  const auto* value = file.find(name);
  if (!value) return std::nullopt;
  if (value->is_array() && value->size() > 1)
    return file.refuse(ErrorCode::kUnsupported, name, "a single id");
  if (value->is_array() && value->size() == 1) value = &value->front();
  if (!value->is_number_unsigned() || value->get<uint64_t>() >= vocabulary_size)
    return file.refuse(ErrorCode::kBadInput, name,
                       fmt::format("an id below the target vocabulary's {}", vocabulary_size));
  return value->get<uint32_t>();
}

Status read_special_ids(const JsonObject& file, MarianConfig& config) {
  uint32_t size = config.decoder_vocabulary_size;
  DUET_ASSIGN(auto eos, read_id(file, "eos_token_id", size));
  DUET_ASSIGN(auto start, read_id(file, "decoder_start_token_id", size));
  DUET_ASSIGN(auto pad, read_id(file, "pad_token_id", size));
  DUET_ASSIGN(config.forced_eos_id, read_id(file, "forced_eos_token_id", size));
  if (!eos) return file.refuse(ErrorCode::kBadInput, "eos_token_id", "the id that ends a translation");
  if (!start) {
    DUET_ASSIGN(start, read_id(file, "bos_token_id", size));  // as the reference does
  }
  if (!start)
    return file.refuse(ErrorCode::kBadInput, "decoder_start_token_id", "the id that starts a translation");
  config.eos_id = *eos;
  config.decoder_start_id = *start;
  config.pad_id = pad.value_or(*eos);  // as the reference does
  return {};
}

// bad_words_ids: [[id], ...]. Phrases of several tokens are refused; </s> alone is ignored, as by the
// reference.
Status read_suppressed_ids(const JsonObject& file, MarianConfig& config) {
  const auto* phrases = file.find("bad_words_ids");
  if (!phrases) return {};
  auto expected = fmt::format("a list of lists of one id below the target vocabulary's {}",
                              config.decoder_vocabulary_size);
  if (!phrases->is_array()) return file.refuse(ErrorCode::kBadInput, "bad_words_ids", expected);
  for (const auto& phrase : *phrases) {
    if (!phrase.is_array() || phrase.empty())
      return file.refuse(ErrorCode::kBadInput, "bad_words_ids", expected);
    if (phrase.size() > 1)
      return failure(ErrorCode::kUnsupported,
                     "{}: bad_words_ids holds the phrase {}, expected phrases of one token only", file.path(),
                     describe(phrase));
    if (!phrase[0].is_number_unsigned() || phrase[0].get<uint64_t>() >= config.decoder_vocabulary_size)
      return failure(ErrorCode::kBadInput, "{}: bad_words_ids holds {}, expected {}", file.path(),
                     describe(phrase), expected);
    if (phrase[0].get<uint32_t>() != config.eos_id)
      config.suppressed_ids.push_back(phrase[0].get<uint32_t>());
  }
  auto& ids = config.suppressed_ids;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  if (ids.size() + 1 >= config.decoder_vocabulary_size)
    return failure(ErrorCode::kBadInput,
                   "{}: bad_words_ids suppresses {} of {} ids, expected some left to generate", file.path(),
                   ids.size(), config.decoder_vocabulary_size);
  return {};
}

Status read_search(const JsonObject& file, MarianConfig& config) {
  DUET_ASSIGN(auto length, file.integer("max_length", 1, kMaxDimension));
  DUET_ASSIGN(auto new_tokens, file.integer("max_new_tokens", 1, kMaxDimension));  // goes before max_length
  if (new_tokens) length = *new_tokens + 1;
  if (length) config.max_length = static_cast<uint32_t>(*length);
  DUET_ASSIGN(auto beams, file.integer("num_beams", 1, 1024));
  DUET_ASSIGN(auto penalty, file.number("length_penalty"));
  DUET_ASSIGN(auto renormalize, file.flag("renormalize_logits"));
  config.num_beams = static_cast<uint32_t>(beams.value_or(1));
  config.length_penalty = penalty.value_or(1.0);
  config.renormalize_logits = renormalize.value_or(false);
  if (const auto* stop = file.find("early_stopping")) {
    if (!stop->is_boolean() && *stop != "never")
      return file.refuse(ErrorCode::kBadInput, "early_stopping", "true, false or \"never\"");
    config.early_stopping = !stop->is_boolean() ? EarlyStopping::kNever
                            : stop->get<bool>() ? EarlyStopping::kFirst
                                                : EarlyStopping::kHeuristic;
  }
  return {};
}

Status read_decoding(const JsonObject& file, MarianConfig& config) {
  DUET_TRY(refuse_unsupported_decoding(file));
  DUET_TRY(read_special_ids(file, config));
  DUET_TRY(read_suppressed_ids(file, config));
  return read_search(file, config);
}

}  // namespace

Result<MarianConfig> read_huggingface_config(const std::string& directory) {
  DUET_ASSIGN(JsonObject file, JsonObject::read(directory + "/config.json"));
  MarianConfig config;
  DUET_TRY(check_architecture(file));
  DUET_TRY(read_sizes(file, config));
  DUET_TRY(read_activation(file, config));
  DUET_TRY(read_embedding_rules(file, config));

  std::string decoding_path = directory + "/generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(decoding_path, ignored))) {
    DUET_TRY(read_decoding(file, config));
    return config;
  }
  DUET_ASSIGN(JsonObject decoding, JsonObject::read(decoding_path));
  DUET_TRY(read_decoding(decoding, config));
  return config;
}

}  // namespace duet::model
