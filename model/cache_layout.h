// How keys and values lie in the caches: in blocks of 16 tokens from a pool, f32 [blocks, 2, d, 16]. [b, 0]
// are the keys of block b's tokens as [d][16], so that the scores of 16 keys are one register; [b, 1] their
// values as [16][d]. A table i32 [slots, blocks per slot] gives the blocks of each slot: token t is in block
// t / 16. Self- and cross-attention of a layer share its pool; all layers share the tables.
#pragma once

#include <cstdint>

namespace duet::model {

inline constexpr int64_t kBlockTokens = 16;

inline constexpr int64_t blocks_of(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace duet::model
