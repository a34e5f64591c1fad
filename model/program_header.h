// The fixed part of a program file; docs/program-format.md describes the whole. Writer and reader share this.
#pragma once

#include <cstdint>
#include <string_view>

namespace duet::model {

inline constexpr char kProgramMagic[4] = {'D', 'U', 'E', 'T'};
inline constexpr uint32_t kProgramVersion = 2;

struct FixedPart {
  char magic[4];
  uint32_t version;
  uint64_t header_bytes;  // of the JSON header, which follows
  uint64_t seal;  // XXH3-64 of the 16 bytes above and the JSON header: a changed byte is noticed at open
};
inline constexpr uint64_t kFixedHeaderBytes = sizeof(FixedPart);
static_assert(kFixedHeaderBytes == 24);
// What belongs in front of a JSON header.
FixedPart fixed_part(std::string_view header, uint32_t version = kProgramVersion);

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
