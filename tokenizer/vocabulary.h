// An immutable table piece <-> id, read in place from a section of a program file: nothing is built at load.
//
// The section (u32 little-endian, no alignment needed), `count` pieces, "rank" = place in increasing byte
// order:
//   u32 count
//   u32 id_of_rank[count]
//   u32 rank_of_id[count]
//   u32 offsets[count + 1]    the piece of rank r is bytes[offsets[r] .. offsets[r + 1])
//   u8  bytes[offsets[count]] the pieces back to back, UTF-8
//
// What open() proves, so that lookups need no checks:
//   1. The section is exactly as long as its counts say; offsets start at 0 and never decrease.
//   2. Every piece is valid UTF-8 and pieces strictly increase with rank: they are distinct.
//   3. rank_of_id and id_of_rank are inverse permutations.
// Thread safety: const methods only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "memory/error.h"

namespace duet::tokenizer {

class Vocabulary {
 public:
  // `section` must outlive the vocabulary. Errors: kBadInput.
  static Result<Vocabulary> open(std::span<const std::byte> section);

  // The section for pieces in the order of their ids. Errors: kBadInput for a piece that is twice there or
  // not UTF-8.
  static Result<std::string> serialize(std::span<const std::string> pieces);

  uint32_t size() const { return count_; }
  // REQUIRES: id < size().
  std::string_view piece(uint32_t id) const { return piece_of_rank(load(rank_of_id_ + 4 * size_t{id})); }
  // Binary search: about 16 comparisons for a vocabulary of 60,000 pieces.
  std::optional<uint32_t> id(std::string_view piece) const;

 private:
  Vocabulary() = default;

  static uint32_t load(const std::byte* from);
  std::string_view piece_of_rank(uint32_t rank) const;
  Status check_ranks() const;
  Status check_pieces(size_t bytes) const;

  // Constant after open.
  uint32_t count_ = 0;
  const std::byte* id_of_rank_ = nullptr;
  const std::byte* rank_of_id_ = nullptr;
  const std::byte* offsets_ = nullptr;
  const std::byte* bytes_ = nullptr;
};

}  // namespace duet::tokenizer
