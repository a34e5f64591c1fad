#include "tokenizer/subwords.h"

#include <sentencepiece_processor.h>

#include <exception>
#include <new>

#include "tokenizer/sentencepiece_check.h"

namespace duet::tokenizer {
namespace {

// Runs a library call; its status and its exceptions become an error.
template <class Call>
Status guarded(const char* what, Call&& call) {
  try {
    sentencepiece::util::Status status = call();
    if (!status.ok())
      return failure(ErrorCode::kBadInput, "SentencePiece cannot {}: {}", what, status.ToString());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return failure(ErrorCode::kBadInput, "SentencePiece cannot {}: {}", what, e.what());
  }
  return {};
}

}  // namespace

Subwords::Subwords(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor)
    : processor_(std::move(processor)) {}
Subwords::Subwords(Subwords&&) noexcept = default;
Subwords& Subwords::operator=(Subwords&&) noexcept = default;
Subwords::~Subwords() = default;

Result<Subwords> Subwords::create(std::string_view model) {
  DUET_ASSIGN(SentencePieceSummary summary, check_sentencepiece(model));
  auto processor = std::make_unique<sentencepiece::SentencePieceProcessor>();
  DUET_TRY(guarded("load the model", [&] { return processor->LoadFromSerializedProto(model); }));
  if (static_cast<uint32_t>(processor->GetPieceSize()) != summary.pieces)
    return failure(ErrorCode::kBadInput, "SentencePiece reads {} pieces, expected {}",
                   processor->GetPieceSize(), summary.pieces);
  return Subwords(std::move(processor));
}

Result<std::unique_ptr<DeferredSubwords>> DeferredSubwords::create(std::string_view model) {
  DUET_TRY(check_sentencepiece(model));
  return std::unique_ptr<DeferredSubwords>(new DeferredSubwords(model));
}

Result<const Subwords*> DeferredSubwords::get() {
  std::lock_guard lock(mutex_);
  if (!built_) {
    DUET_ASSIGN(Subwords subwords, Subwords::create(model_));
    built_ = std::make_unique<const Subwords>(std::move(subwords));
  }
  return built_.get();
}

Result<Subwords::Pieces> Subwords::encode(std::string_view text) const {
  if (text.size() > kMaxTextBytes)
    return failure(ErrorCode::kUsage,
                   "a text of {} bytes is encoded at once, expected at most {}: cut it first", text.size(),
                   kMaxTextBytes);
  sentencepiece::ImmutableSentencePieceText encoded;
  DUET_TRY(guarded("encode", [&] { return processor_->Encode(text, encoded.mutable_proto()); }));
  Pieces out;
  const size_t count = encoded.pieces_size();
  out.texts.reserve(count);
  out.ranges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const auto piece = encoded.pieces(static_cast<int>(i));
    out.texts.push_back(piece.piece());
    out.ranges.push_back({piece.begin(), piece.end()});
  }
  return out;
}

Result<std::string> Subwords::decode(const std::vector<std::string_view>& pieces) const {
  std::string text;
  DUET_TRY(guarded("decode", [&] { return processor_->Decode(pieces, &text); }));
  return text;
}

}  // namespace duet::tokenizer
