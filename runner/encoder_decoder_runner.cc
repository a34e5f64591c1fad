#include "runner/encoder_decoder_runner.h"

#include "model/marian_builder.h"

namespace duet::runner {
namespace {

model::TensorView vector_view(std::span<const int32_t> values) {
  model::TensorView view;
  view.data =
      const_cast<std::byte*>(reinterpret_cast<const std::byte*>(values.data()));  // inputs are only read
  view.dtype = model::DType::kI32;
  view.rank = 1;
  view.dims[0] = static_cast<int64_t>(values.size());
  return view;
}

}  // namespace

EncoderDecoderRunner::EncoderDecoderRunner(std::unique_ptr<model::Session> session)
    : session_(std::move(session)) {}

Result<EncoderDecoderRunner> EncoderDecoderRunner::create(std::shared_ptr<const model::Program> program,
                                                          const model::SessionOptions& options) {
  try {
    std::string path = program->path();
    for (const char* method : {"reset_encode_prefill", "decode", "release"})
      if (!program->definition().find_method(method))
        return failure(ErrorCode::kBadInput, "{}: no method {}: this is not a translation program", path,
                       method);
    DUET_ASSIGN(auto session, model::Session::create(std::move(program), options));
    EncoderDecoderRunner runner(std::move(session));
    Status status = runner.check_program();
    if (!status) return failure(status.error().code, "{}: {}", path, status.error().message);
    runner.reserve_inputs();
    return runner;
  } catch (const std::bad_alloc&) {
    return failure(ErrorCode::kOutOfMemory, "out of memory while making a runner");
  }
}

Status EncoderDecoderRunner::check_program() {
  const model::ProgramDefinition& definition = program().definition();
  prefill_method_ = session_->find_method("reset_encode_prefill");
  decode_method_ = session_->find_method("decode");
  release_method_ = session_->find_method("release");
  auto expect_shape = [&](int index, std::vector<std::string> inputs,
                          std::vector<std::string> outputs) -> Status {
    const model::Method& method = definition.methods[static_cast<size_t>(index)];
    bool same = method.inputs.size() == inputs.size() && method.outputs.size() >= outputs.size();
    for (size_t i = 0; same && i < inputs.size(); ++i)
      same = method.inputs[i].name == inputs[i] && method.inputs[i].dtype == model::DType::kI32 &&
             method.inputs[i].shape.size() == 1;
    for (size_t i = 0; same && i < outputs.size(); ++i) {
      const model::TensorSpec& spec = definition.spec(method, method.outputs[i].value);
      auto dtype = outputs[i] == "scores" ? model::DType::kF32 : model::DType::kI32;
      same =
          method.outputs[i].name == outputs[i] && spec.dtype == dtype && spec.shape == model::Shape{"rows"};
    }
    if (!same)
      return failure(ErrorCode::kBadInput, "method {}: expected inputs {} and outputs {}", method.name,
                     fmt::join(inputs, ", "), fmt::join(outputs, ", "));
    return {};
  };
  const std::vector<std::string> results = {"tokens", "scores", "finished"};
  DUET_TRY(expect_shape(
      prefill_method_,
      {"source_tokens", "source_lengths", "slots", "prompt_tokens", "prompt_lengths", "target_limits"},
      results));
  DUET_TRY(expect_shape(decode_method_, {"slots"}, results));
  DUET_TRY(expect_shape(release_method_, {"slots"}, {}));
  struct {
    const char* name;
    int64_t* value;
  } limits[] = {{model::kSlots, &slots_},
                {model::kMaxSourceTokens, &max_source_tokens_},
                {model::kMaxTargetTokens, &max_target_tokens_},
                {model::kBatchTokens, &batch_tokens_},
                {model::kCacheBlocks, &cache_blocks_}};
  for (auto& limit : limits) {
    if (!definition.find_symbol(limit.name)) return failure(ErrorCode::kBadInput, "no limit {}", limit.name);
    *limit.value = session_->symbol(limit.name);
  }
  struct {
    const char* name;
    int32_t* value;
  } ids[] = {{"decoder_start_id", &start_token_}, {"eos_id", &end_token_}};
  for (auto& id : ids) {
    auto found = definition.metadata.find(id.name);
    if (found == definition.metadata.end() || !found->is_number_unsigned() ||
        found->get<uint64_t>() > INT32_MAX)
      return failure(ErrorCode::kBadInput, "metadata.{} is missing or no token id", id.name);
    auto size = definition.metadata.find("target_vocabulary");
    if (size != definition.metadata.end() && size->is_number_unsigned() && *found >= *size)
      return failure(ErrorCode::kBadInput, "metadata.{} is {}, expected a token id below {}", id.name,
                     found->get<uint64_t>(), size->get<uint64_t>());
    *id.value = found->get<int32_t>();
  }
  pool_state_ = session_->shared("slots.pool_state");
  if (!pool_state_ || pool_state_.elements() != 2 || pool_state_.dtype != model::DType::kI32)
    return failure(ErrorCode::kBadInput, "no shared buffer slots.pool_state i32[2]");
  return {};
}

// For calls of the largest size, so that no call allocates.
void EncoderDecoderRunner::reserve_inputs() {
  for (auto* per_token : {&source_tokens_, &prompt_tokens_})
    per_token->reserve(static_cast<size_t>(batch_tokens_));
  for (auto* per_row : {&source_lengths_, &row_slots_, &prompt_lengths_, &limits_})
    per_row->reserve(static_cast<size_t>(slots_));
  choices_.reserve(static_cast<size_t>(slots_));
}

int64_t EncoderDecoderRunner::free_blocks() {
  const int32_t* state = pool_state_.as<const int32_t>();
  return state[0] + cache_blocks_ - state[1];
}

Result<std::span<const EncoderDecoderRunner::Choice>> EncoderDecoderRunner::collect(
    Result<std::span<const model::TensorView>> outputs) {
  if (!outputs) return tl::make_unexpected(std::move(outputs).error());
  choices_.clear();
  for (int64_t i = 0; i < (*outputs)[0].dims[0]; ++i)
    choices_.push_back(
        {(*outputs)[0].as<int32_t>()[i], (*outputs)[1].as<float>()[i], (*outputs)[2].as<int32_t>()[i] != 0});
  return std::span<const Choice>(choices_);
}

Result<std::span<const EncoderDecoderRunner::Choice>> EncoderDecoderRunner::prefill(
    std::span<const Row> rows) {
  for (auto* input :
       {&source_tokens_, &source_lengths_, &row_slots_, &prompt_tokens_, &prompt_lengths_, &limits_})
    input->clear();
  for (const Row& row : rows) {
    source_tokens_.insert(source_tokens_.end(), row.source.begin(), row.source.end());
    source_lengths_.push_back(static_cast<int32_t>(row.source.size()));
    row_slots_.push_back(row.slot);
    prompt_tokens_.push_back(start_token_);
    prompt_tokens_.insert(prompt_tokens_.end(), row.prefix.begin(), row.prefix.end());
    prompt_lengths_.push_back(static_cast<int32_t>(row.prefix.size()) + 1);
    limits_.push_back(row.target_limit);
  }
  model::TensorView inputs[] = {vector_view(source_tokens_),  vector_view(source_lengths_),
                                vector_view(row_slots_),      vector_view(prompt_tokens_),
                                vector_view(prompt_lengths_), vector_view(limits_)};
  return collect(session_->execute(prefill_method_, inputs));
}

Result<std::span<const EncoderDecoderRunner::Choice>> EncoderDecoderRunner::decode(
    std::span<const int32_t> slots) {
  model::TensorView inputs[] = {vector_view(slots)};
  return collect(session_->execute(decode_method_, inputs));
}

Status EncoderDecoderRunner::release(std::span<const int32_t> slots) {
  model::TensorView inputs[] = {vector_view(slots)};
  auto outputs = session_->execute(release_method_, inputs);
  if (!outputs) return tl::make_unexpected(std::move(outputs).error());
  return {};
}

}  // namespace duet::runner
