// One SentencePiece model: text <-> pieces. The only file pair that calls the library.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace duet::tokenizer {

struct ByteRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Thread safety: const methods only.
class Subwords {
 public:
  // SentencePiece copies a run of unknown characters once per character of it: 256 KiB of them take seconds,
  // 1 MiB a minute. Longer texts are cut first (cutter.h).
  static constexpr size_t kMaxTextBytes = 256 * 1024;

  // Checks the blob first (sentencepiece_check.h) and copies what it needs. Errors: kBadInput.
  static Result<Subwords> create(std::string_view model);

  Subwords(Subwords&&) noexcept;
  Subwords& operator=(Subwords&&) noexcept;
  ~Subwords();

  // Pieces in order, and the bytes of the text that each stands for.
  struct Pieces {
    std::vector<std::string> texts;
    std::vector<ByteRange> ranges;
  };
  // Errors: kUsage for a text above kMaxTextBytes; kBadInput when the model contradicts itself.
  Result<Pieces> encode(std::string_view text) const;

  // The text that the pieces make. Errors: kBadInput when the model contradicts itself.
  Result<std::string> decode(const std::vector<std::string_view>& pieces) const;

 private:
  explicit Subwords(std::unique_ptr<sentencepiece::SentencePieceProcessor> processor);

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

// A model that is checked at once but built when it is first used: building takes the library milliseconds,
// and the target side of a shared vocabulary is needed for scoring only. Thread-safe.
class DeferredSubwords {
 public:
  // Errors: kBadInput.
  static Result<std::unique_ptr<DeferredSubwords>> create(std::string_view model);

  // Errors: kBadInput, each time, when the library refuses the model.
  Result<const Subwords*> get();

 private:
  explicit DeferredSubwords(std::string_view model) : model_(model) {}

  const std::string model_;
  std::mutex mutex_;
  std::unique_ptr<const Subwords> built_;  // guarded by mutex_; constant once set
};

}  // namespace duet::tokenizer
