#include "tokenizer/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tokenizer/text.h"

namespace duet::tokenizer {

static_assert(std::endian::native == std::endian::little, "sections are little-endian and read in place");

uint32_t Vocabulary::load(const std::byte* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

std::string_view Vocabulary::piece_of_rank(uint32_t rank) const {
  uint32_t begin = load(offsets_ + 4 * size_t{rank});
  uint32_t end = load(offsets_ + 4 * (size_t{rank} + 1));
  return {reinterpret_cast<const char*>(bytes_) + begin, end - begin};
}

Result<Vocabulary> Vocabulary::open(std::span<const std::byte> section) {
  if (section.size() < 4)
    return failure(ErrorCode::kBadInput, "vocabulary: {} bytes, expected at least 4 for the count",
                   section.size());
  Vocabulary table;
  table.count_ = load(section.data());
  const size_t count = table.count_;
  const size_t header_bytes = 4 * (1 + count + count + count + 1);
  if (count >= std::numeric_limits<int32_t>::max() || section.size() < header_bytes)
    return failure(ErrorCode::kBadInput,
                   "vocabulary: count is {}, which needs a table of {} bytes; the section has {}", count,
                   header_bytes, section.size());
  table.id_of_rank_ = section.data() + 4;
  table.rank_of_id_ = table.id_of_rank_ + 4 * count;
  table.offsets_ = table.rank_of_id_ + 4 * count;
  table.bytes_ = table.offsets_ + 4 * (count + 1);
  DUET_TRY(table.check_ranks());
  DUET_TRY(table.check_pieces(section.size() - header_bytes));
  return table;
}

Status Vocabulary::check_ranks() const {
  for (uint32_t id = 0; id < count_; ++id) {
    uint32_t rank = load(rank_of_id_ + 4 * size_t{id});
    if (rank >= count_ || load(id_of_rank_ + 4 * size_t{rank}) != id)
      return failure(ErrorCode::kBadInput,
                     "vocabulary: rank_of_id[{}] is {}, which id_of_rank does not lead back from", id, rank);
  }
  return {};
}

Status Vocabulary::check_pieces(size_t bytes) const {
  uint32_t first = load(offsets_);
  uint32_t last = load(offsets_ + 4 * size_t{count_});
  if (first != 0 || last != bytes)
    return failure(ErrorCode::kBadInput, "vocabulary: offsets run from {} to {}, expected 0 to {}", first,
                   last, bytes);
  // All offsets before any piece is read.
  for (uint32_t rank = 0; rank < count_; ++rank) {
    uint32_t begin = load(offsets_ + 4 * size_t{rank});
    uint32_t end = load(offsets_ + 4 * (size_t{rank} + 1));
    if (begin > end || end > bytes)
      return failure(ErrorCode::kBadInput,
                     "vocabulary: offsets[{}] is {} after {}, expected increasing and at most {}", rank + 1,
                     end, begin, bytes);
  }
  for (uint32_t rank = 0; rank < count_; ++rank) {
    std::string_view piece = piece_of_rank(rank);
    if (!is_valid_utf8(piece))
      return failure(ErrorCode::kBadInput, "vocabulary: the piece of rank {} is not valid UTF-8", rank);
    if (rank > 0 && piece_of_rank(rank - 1) >= piece)
      return failure(ErrorCode::kBadInput,
                     "vocabulary: piece '{}' of rank {} is not greater than the one before it", piece, rank);
  }
  return {};
}

std::optional<uint32_t> Vocabulary::id(std::string_view piece) const {
  uint32_t low = 0;
  uint32_t high = count_;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    int order = piece_of_rank(middle).compare(piece);
    if (order == 0) return load(id_of_rank_ + 4 * size_t{middle});
    (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
  }
  return std::nullopt;
}

Result<std::string> Vocabulary::serialize(std::span<const std::string> pieces) {
  size_t bytes = 0;
  for (const std::string& piece : pieces) bytes += piece.size();
  if (pieces.size() >= std::numeric_limits<int32_t>::max() || bytes > std::numeric_limits<uint32_t>::max())
    return failure(ErrorCode::kUnsupported,
                   "vocabulary: {} pieces of {} bytes in all do not fit 32-bit offsets", pieces.size(),
                   bytes);
  const auto count = static_cast<uint32_t>(pieces.size());

  std::vector<uint32_t> id_of_rank(count);
  std::iota(id_of_rank.begin(), id_of_rank.end(), 0u);
  std::sort(id_of_rank.begin(), id_of_rank.end(),
            [&](uint32_t a, uint32_t b) { return pieces[a] < pieces[b]; });
  std::vector<uint32_t> rank_of_id(count);
  std::vector<uint32_t> offsets{0};
  for (uint32_t rank = 0; rank < count; ++rank) {
    const uint32_t id = id_of_rank[rank];
    const std::string& piece = pieces[id];
    if (!is_valid_utf8(piece))
      return failure(ErrorCode::kBadInput, "vocabulary: piece {} is not valid UTF-8", id);
    if (rank > 0 && pieces[id_of_rank[rank - 1]] == piece)
      return failure(ErrorCode::kBadInput, "vocabulary: piece '{}' has two ids, {} and {}", piece,
                     id_of_rank[rank - 1], id);
    rank_of_id[id] = rank;
    offsets.push_back(offsets.back() + static_cast<uint32_t>(piece.size()));
  }

  std::string section;
  section.reserve(4 * (3 * size_t{count} + 2) + bytes);
  auto append = [&](std::span<const uint32_t> values) {
    section.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  };
  append({&count, 1});
  append(id_of_rank);
  append(rank_of_id);
  append(offsets);
  for (uint32_t id : id_of_rank) section += pieces[id];
  return section;
}

}  // namespace duet::tokenizer
