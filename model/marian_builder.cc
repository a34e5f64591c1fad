#include "model/marian_builder.h"

#include <cmath>
#include <set>

namespace duet::model {
namespace {

constexpr float kNormEpsilon = 1e-5f;
constexpr int64_t kMaxSlots = 4096;
constexpr int64_t kMaxBatchTokens = int64_t{1} << 20;
constexpr int64_t kMaxCacheBlocks = int64_t{1} << 24;

// Defaults of the limits: a batch that keeps a processor busy, and a cache for everyday sentences in every
// slot.
constexpr int64_t kDefaultSlots = 32;
constexpr int64_t kDefaultBatchTokens = 1024;
constexpr int64_t kTypicalTokens = 64;  // a side, per slot, when the limits allow many more

const char* activation_name(MarianActivation activation) {
  switch (activation) {
    case MarianActivation::kRelu:
      return "relu";
    case MarianActivation::kGelu:
      return "gelu";
    case MarianActivation::kSwish:
      return "swish";
  }
  return "none";
}

class MarianBuilder {
 public:
  MarianBuilder(const MarianCheckpoint& checkpoint, const MarianBuildOptions& options,
                MultiEntryPointExporter& exporter)
      : checkpoint_(checkpoint), config_(checkpoint.config()), options_(options), exporter_(exporter) {}

  Status build() {
    define_limits();
    DUET_TRY(define_tables());
    DUET_TRY(define_layers());
    define_state();
    build_prefill();
    build_decode();
    auto& release = exporter_.method("release");
    release.call("release_slots", "release_slots", with_state({release.input(slots_input())}));
    define_metadata();
    return {};
  }

 private:
  void define_limits() {
    int64_t positions = config_.max_position_embeddings;
    // max_length counts the start token, which is no output.
    int64_t target = config_.max_length ? std::max<int64_t>(1, int64_t{*config_.max_length} - 1) : positions;
    exporter_.limit(kSlots, 1, kMaxSlots, kDefaultSlots, "sentences decoded at once");
    exporter_.limit(kMaxSourceTokens, 1, positions, positions, "tokens of the longest source, </s> included");
    exporter_.limit(kMaxTargetTokens, 1, positions, target,
                    "tokens of the longest translation, </s> included");
    // One request of the largest size always fits.
    exporter_.limit(kBatchTokens, max(kSlots, max(kMaxSourceTokens, kMaxTargetTokens)), kMaxBatchTokens,
                    max(max(kSlots, max(kMaxSourceTokens, kMaxTargetTokens)),
                        min(mul(kSlots, kMaxSourceTokens), kDefaultBatchTokens)),
                    "tokens that one call of reset_encode_prefill may encode");
    exporter_.derived("source_blocks", ceil_div(kMaxSourceTokens, kBlockTokens));
    exporter_.derived("target_blocks", ceil_div(kMaxTargetTokens, kBlockTokens));
    Expression one = add("source_blocks", "target_blocks");
    int64_t typical = kTypicalTokens / kBlockTokens;
    exporter_.limit(kCacheBlocks, one, kMaxCacheBlocks,
                    max(one, mul(kSlots, add(min("source_blocks", typical), min("target_blocks", typical)))),
                    "blocks of 16 tokens in the caches");
    exporter_.dynamic("rows", 1, kSlots, "slots of a call");
    exporter_.dynamic("source_batch", 1, kBatchTokens, "source tokens of a call");
    exporter_.dynamic("prompt_batch", 1, kBatchTokens, "prompt tokens of a call");
  }

  // The constant is added once, however many roles its table plays.
  Status add_once(const std::string& name, Result<std::vector<float>> values, std::vector<int64_t> dims,
                  Layout layout) {
    if (!values) return tl::make_unexpected(values.error());
    if (added_.insert(name).second) exporter_.constant(name, std::move(*values), std::move(dims), layout);
    return {};
  }

  Status define_tables() {
    const MarianTables& tables = checkpoint_.tables();
    int64_t d = config_.d_model, positions = config_.max_position_embeddings;
    int64_t target = config_.decoder_vocabulary_size;
    encoder_positions_ = tables.encoder_positions.empty() ? "positions" : tables.encoder_positions;
    decoder_positions_ = tables.decoder_positions.empty() ? "positions" : tables.decoder_positions;
    DUET_TRY(add_once(tables.encoder_embedding, checkpoint_.encoder_embedding(), {config_.vocabulary_size, d},
                      Layout::kPanels));
    DUET_TRY(
        add_once(tables.decoder_embedding, checkpoint_.decoder_embedding(), {target, d}, Layout::kPanels));
    DUET_TRY(add_once(tables.output_weight, checkpoint_.output_weight(), {target, d}, Layout::kPanels));
    DUET_TRY(add_once(encoder_positions_, checkpoint_.encoder_positions(), {positions, d}, Layout::kRows));
    DUET_TRY(add_once(decoder_positions_, checkpoint_.decoder_positions(), {positions, d}, Layout::kRows));
    return add_once("final_logits_bias", checkpoint_.final_logits_bias(), {target}, Layout::kRows);
  }

  // Layers that read the same input become one: their outputs side by side.
  Status add_linear(const std::string& name, const std::vector<std::string>& parts) {
    LinearWeights all;
    for (const std::string& part : parts) {
      DUET_ASSIGN(LinearWeights weights, checkpoint_.linear(part));
      all.inputs = weights.inputs;
      all.outputs += weights.outputs;
      all.weight.insert(all.weight.end(), weights.weight.begin(), weights.weight.end());
      all.bias.insert(all.bias.end(), weights.bias.begin(), weights.bias.end());
    }
    auto n = static_cast<int64_t>(all.outputs);
    exporter_.constant(name + ".weight", std::move(all.weight), {n, static_cast<int64_t>(all.inputs)},
                       Layout::kPanels);
    exporter_.constant(name + ".bias", std::move(all.bias), {n});
    return {};
  }

  Status add_norm(const std::string& name) {
    DUET_ASSIGN(NormWeights weights, checkpoint_.norm(name));
    auto d = static_cast<int64_t>(weights.gamma.size());
    exporter_.constant(name + ".weight", std::move(weights.gamma), {d});
    exporter_.constant(name + ".bias", std::move(weights.beta), {d});
    return {};
  }

  static std::string layer_name(const char* side, uint32_t i) {
    return fmt::format("model.{}.layers.{}.", side, i);
  }
  static std::vector<std::string> parts(const std::string& attention,
                                        std::initializer_list<const char*> which) {
    std::vector<std::string> names;
    for (const char* part : which) names.push_back(attention + "." + part);
    return names;
  }

  Status define_layers() {
    auto common = [&](const std::string& layer) -> Status {
      DUET_TRY(add_linear(layer + "self_attn.qkv_proj",
                          parts(layer + "self_attn", {"q_proj", "k_proj", "v_proj"})));
      DUET_TRY(add_linear(layer + "self_attn.out_proj", {layer + "self_attn.out_proj"}));
      DUET_TRY(add_norm(layer + "self_attn_layer_norm"));
      DUET_TRY(add_linear(layer + "fc1", {layer + "fc1"}));
      DUET_TRY(add_linear(layer + "fc2", {layer + "fc2"}));
      return add_norm(layer + "final_layer_norm");
    };
    for (uint32_t i = 0; i < config_.encoder_layers; ++i) DUET_TRY(common(layer_name("encoder", i)));
    for (uint32_t i = 0; i < config_.decoder_layers; ++i) {
      std::string layer = layer_name("decoder", i), cross = layer + "encoder_attn";
      DUET_TRY(common(layer));
      DUET_TRY(add_linear(cross + ".q_proj", {cross + ".q_proj"}));
      DUET_TRY(add_linear(cross + ".kv_proj", parts(cross, {"k_proj", "v_proj"})));
      DUET_TRY(add_linear(cross + ".out_proj", {cross + ".out_proj"}));
      DUET_TRY(add_norm(layer + "encoder_attn_layer_norm"));
    }
    return {};
  }

  static std::string pool(uint32_t layer) { return fmt::format("decoder.layers.{}.kv_cache", layer); }

  // See operators/state_operators.cc for what the buffers hold.
  void define_state() {
    for (const char* name : {"status", "positions", "limits", "source_lengths", "tokens"})
      exporter_.buffer(std::string("slots.") + name, DType::kI32, {kSlots});
    exporter_.buffer("slots.self_table", DType::kI32, {kSlots, "target_blocks"});
    exporter_.buffer("slots.cross_table", DType::kI32, {kSlots, "source_blocks"});
    exporter_.buffer("slots.free_blocks", DType::kI32, {kCacheBlocks});
    exporter_.buffer("slots.pool_state", DType::kI32, {2});
    for (uint32_t i = 0; i < config_.decoder_layers; ++i)
      exporter_.buffer(pool(i), DType::kF32, {kCacheBlocks, 2, int64_t{config_.d_model}, kBlockTokens});
    exporter_.register_shared_prefix("slots.");
    exporter_.register_shared_prefix("decoder.");
  }

  static std::vector<std::string> with_state(std::vector<std::string> own) {
    for (const char* name : {"status", "positions", "limits", "source_lengths", "tokens", "self_table",
                             "cross_table", "free_blocks", "pool_state"})
      own.push_back(std::string("slots.") + name);
    return own;
  }

  static InputSpec integers(const char* name, const char* dim, Expression min, Expression max,
                            const char* help) {
    InputSpec spec;
    spec.name = name;
    spec.dtype = DType::kI32;
    spec.shape = {dim};
    spec.min_value = std::move(min);
    spec.max_value = std::move(max);
    spec.help = help;
    return spec;
  }
  static InputSpec slots_input() {
    InputSpec spec = integers("slots", "rows", 0, add(kSlots, -1), "the slot of each row");
    spec.distinct = true;
    return spec;
  }

  std::string linear(MethodBuilder& m, const std::string& name, const std::string& x,
                     const std::string& residual = "", Attributes attributes = {}) {
    return m.call("linear", name, {x, name + ".weight", name + ".bias", residual}, std::move(attributes));
  }
  std::string norm(MethodBuilder& m, const std::string& name, const std::string& x) {
    return m.call("norm", name, {x, name + ".weight", name + ".bias"},
                  {{"epsilon", static_cast<double>(kNormEpsilon)}});
  }
  std::string feed_forward(MethodBuilder& m, const std::string& layer, const std::string& x) {
    std::string hidden =
        linear(m, layer + "fc1", x, "", {{"activation", activation_name(config_.activation)}});
    return norm(m, layer + "final_layer_norm", linear(m, layer + "fc2", hidden, x));
  }
  std::string self_qkv(MethodBuilder& m, const std::string& layer, const std::string& x) {
    return linear(m, layer + "self_attn.qkv_proj", x, "",
                  {{"parts", parts(layer + "self_attn", {"q_proj", "k_proj", "v_proj"})}});
  }
  std::string embed(MethodBuilder& m, const char* side, const std::string& ids, const std::string& positions,
                    const std::string& table, const std::string& position_table) {
    double scale = config_.scale_embedding ? std::sqrt(static_cast<double>(config_.d_model)) : 1.0;
    return m.call("embed", fmt::format("model.{}.embed_tokens", side),
                  {ids, positions, table, position_table}, {{"scale", scale}});
  }

  std::string build_encoder(MethodBuilder& m, const std::string& tokens, const std::string& lengths,
                            const std::vector<std::string>& index) {
    std::string x =
        embed(m, "encoder", tokens, index[3], checkpoint_.tables().encoder_embedding, encoder_positions_);
    for (uint32_t i = 0; i < config_.encoder_layers; ++i) {
      std::string layer = layer_name("encoder", i);
      std::string context =
          m.call("attend_ragged", layer + "self_attn", {self_qkv(m, layer, x), index[0], lengths},
                 {{"heads", int64_t{config_.encoder_heads}}});
      x = norm(m, layer + "self_attn_layer_norm", linear(m, layer + "self_attn.out_proj", context, x));
      x = feed_forward(m, layer, x);
    }
    return x;
  }

  // One decoder pass over tokens of any slots at any positions. row_slots, positions: i32[tokens].
  std::string build_decoder(MethodBuilder& m, const std::string& tokens, const std::string& row_slots,
                            const std::string& positions) {
    Attributes heads = {{"heads", int64_t{config_.decoder_heads}}};
    Attributes self_heads = heads;
    self_heads["extra"] = int64_t{1};  // a token also attends to itself
    std::string source_lengths =
        m.call("gather_rows", "decoder.source_lengths", {"slots.source_lengths", row_slots});
    std::string x =
        embed(m, "decoder", tokens, positions, checkpoint_.tables().decoder_embedding, decoder_positions_);
    for (uint32_t i = 0; i < config_.decoder_layers; ++i) {
      std::string layer = layer_name("decoder", i), cross = layer + "encoder_attn";
      std::string qkv = self_qkv(m, layer, x);
      m.call("cache_write", layer + "self_attn.cache_write",
             {qkv, row_slots, positions, "slots.self_table", pool(i)},
             {{"column", int64_t{config_.d_model}}});
      std::string context = m.call("attend_cached", layer + "self_attn",
                                   {qkv, row_slots, positions, "slots.self_table", pool(i)}, self_heads);
      x = norm(m, layer + "self_attn_layer_norm", linear(m, layer + "self_attn.out_proj", context, x));
      std::string q = linear(m, cross + ".q_proj", x);
      context =
          m.call("attend_cached", cross, {q, row_slots, source_lengths, "slots.cross_table", pool(i)}, heads);
      x = norm(m, layer + "encoder_attn_layer_norm", linear(m, cross + ".out_proj", context, x));
      x = feed_forward(m, layer, x);
    }
    return x;
  }

  // x: f32 [rows, d], the last token of each row. added: i32[rows], tokens of each row in this call, "" for
  // one.
  void build_choice(MethodBuilder& m, const std::string& x, const std::string& added) {
    std::vector<int64_t> suppress(config_.suppressed_ids.begin(), config_.suppressed_ids.end());
    std::string table = checkpoint_.tables().output_weight;
    std::string forced =
        m.call("forced_tokens", "forced_tokens", with_state({"slots", added}),
               {{"token", config_.forced_eos_id ? int64_t{*config_.forced_eos_id} : int64_t{-1}}});
    auto choice = m.call_all("select_argmax", "lm_head", {x, table, "final_logits_bias", forced},
                             {{"suppress", suppress}});
    std::string finished = m.call("advance", "advance", with_state({"slots", choice[0], added}),
                                  {{"end", int64_t{config_.eos_id}}});
    m.output("tokens", choice[0]);
    m.output("scores", choice[1]);
    m.output("finished", finished);
    if (options_.output_logits)
      m.output("logits", m.call("linear", "logits", {x, table, "final_logits_bias"}));
  }

  void build_prefill() {
    MethodBuilder& m = exporter_.method("reset_encode_prefill");
    int64_t source_top = int64_t{config_.vocabulary_size} - 1,
            target_top = int64_t{config_.decoder_vocabulary_size} - 1;
    std::string source =
        m.input(integers("source_tokens", "source_batch", 0, source_top,
                         "source ids of all rows, one row after the other, each with its final </s>"));
    InputSpec lengths = integers("source_lengths", "rows", 1, kMaxSourceTokens, "source tokens of each row");
    lengths.sums_to = "source_batch";
    std::string source_lengths = m.input(lengths);
    std::string slots = m.input(slots_input());
    std::string prompt = m.input(integers("prompt_tokens", "prompt_batch", 0, target_top,
                                          "decoder inputs of all rows, each beginning with the start token"));
    lengths = integers("prompt_lengths", "rows", 1, kMaxTargetTokens, "prompt tokens of each row");
    lengths.sums_to = "prompt_batch";
    std::string prompt_lengths = m.input(lengths);
    std::string limits =
        m.input(integers("target_limits", "rows", 1, kMaxTargetTokens,
                         "most target tokens of each row, the prompt's and the final </s> included"));

    m.call("open_slots", "open_slots", with_state({slots, source_lengths, limits, prompt_lengths}));
    auto sources = m.call_all("ragged_index", "source_index", {source_lengths}, {{"tokens", "source_batch"}});
    std::string source_slots = m.call("gather_rows", "source_slots", {slots, sources[2]});
    std::string encoded = build_encoder(m, source, source_lengths, sources);
    for (uint32_t i = 0; i < config_.decoder_layers; ++i) {
      std::string cross = layer_name("decoder", i) + "encoder_attn";
      std::string kv =
          linear(m, cross + ".kv_proj", encoded, "", {{"parts", parts(cross, {"k_proj", "v_proj"})}});
      m.call("cache_write", cross + ".cache_write",
             {kv, source_slots, sources[3], "slots.cross_table", pool(i)}, {{"column", int64_t{0}}});
    }
    auto prompts = m.call_all("ragged_index", "prompt_index", {prompt_lengths}, {{"tokens", "prompt_batch"}});
    std::string prompt_slots = m.call("gather_rows", "prompt_slots", {slots, prompts[2]});
    std::string x = build_decoder(m, prompt, prompt_slots, prompts[3]);
    build_choice(m, m.call("gather_rows", "last_tokens", {x, prompts[1]}), prompt_lengths);
  }

  void build_decode() {
    MethodBuilder& m = exporter_.method("decode");
    std::string slots = m.input(slots_input());
    m.call("extend_slots", "extend_slots", with_state({slots}));
    std::string tokens = m.call("gather_rows", "decoder.tokens", {"slots.tokens", slots});
    std::string positions = m.call("gather_rows", "decoder.positions", {"slots.positions", slots});
    build_choice(m, build_decoder(m, tokens, slots, positions), "");
  }

  void define_metadata() {
    auto& metadata = exporter_.metadata();
    metadata["architecture"] = "marian";
    metadata["d_model"] = config_.d_model;
    metadata["encoder_layers"] = config_.encoder_layers;
    metadata["decoder_layers"] = config_.decoder_layers;
    metadata["encoder_attention_heads"] = config_.encoder_heads;
    metadata["decoder_attention_heads"] = config_.decoder_heads;
    metadata["encoder_ffn_dim"] = config_.encoder_ffn_dim;
    metadata["decoder_ffn_dim"] = config_.decoder_ffn_dim;
    metadata["activation_function"] = activation_name(config_.activation);
    metadata["source_vocabulary"] = config_.vocabulary_size;
    metadata["target_vocabulary"] = config_.decoder_vocabulary_size;
    metadata["weights"] = "f32";
    metadata["pad_id"] = config_.pad_id;
    metadata["eos_id"] = config_.eos_id;
    metadata["decoder_start_id"] = config_.decoder_start_id;
  }

  const MarianCheckpoint& checkpoint_;
  const MarianConfig& config_;
  const MarianBuildOptions& options_;
  MultiEntryPointExporter& exporter_;
  std::set<std::string> added_;
  std::string encoder_positions_, decoder_positions_;
};

}  // namespace

Status build_marian(const MarianCheckpoint& checkpoint, const MarianBuildOptions& options,
                    MultiEntryPointExporter& exporter) {
  return MarianBuilder(checkpoint, options, exporter).build();
}

}  // namespace duet::model
