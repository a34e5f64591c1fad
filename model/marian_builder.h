// Builds the encoder-decoder program of a Marian checkpoint, whatever its sizes:
//   reset_encode_prefill(source_tokens, source_lengths, slots, prompt_tokens, prompt_lengths, target_limits)
//       -> tokens, scores, finished       clears the slots, encodes, fills their caches, decodes the prompts
//   decode(slots) -> tokens, scores, finished                                  one greedy step for each slot
//   release(slots)                                                             ends slots, gives back their
//   cache blocks
// Sources are ragged: row after row, without padding. docs/program-format.md describes the methods' operands.
#pragma once

#include "memory/error.h"
#include "model/cache_layout.h"
#include "model/exporter.h"
#include "model/importers/checkpoint.h"

namespace duet::model {

// Names of the limits, the same in the program, in messages and (with dashes) on the command line.
inline constexpr char kSlots[] = "slots";
inline constexpr char kMaxSourceTokens[] = "max_source_tokens";
inline constexpr char kMaxTargetTokens[] = "max_target_tokens";
inline constexpr char kBatchTokens[] = "batch_tokens";
inline constexpr char kCacheBlocks[] = "cache_blocks";

struct MarianBuildOptions {
  bool output_logits =
      false;  // both decoding methods also give `logits` f32[rows, vocabulary]: for comparisons
};

// Adds methods, state, constants and metadata of the model to `exporter`. Errors: those of reading the
// checkpoint.
Status build_marian(const MarianCheckpoint& checkpoint, const MarianBuildOptions& options,
                    MultiEntryPointExporter& exporter);

}  // namespace duet::model
