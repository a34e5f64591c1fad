// The fixed part of a program file; docs/program-format.md describes the whole. Writer and reader share this.
#pragma once

#include <cstdint>

namespace duet::model {

inline constexpr char kProgramMagic[4] = {'D', 'U', 'E', 'T'};
inline constexpr uint64_t kFixedHeaderBytes = 16;  // magic, u32 version, u64 bytes of the JSON header
inline constexpr uint64_t kSectionAlignment = 64;  // a cache line, an AVX-512 register, a row of an AMX tile
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20;

inline constexpr uint64_t aligned(uint64_t offset) {
  return (offset + kSectionAlignment - 1) / kSectionAlignment * kSectionAlignment;
}
// Where the data begin that offsets in the JSON header count from.
inline constexpr uint64_t data_start(uint64_t header_bytes) {
  return aligned(kFixedHeaderBytes + header_bytes);
}

}  // namespace duet::model
