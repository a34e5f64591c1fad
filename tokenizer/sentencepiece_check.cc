#include "tokenizer/sentencepiece_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "tokenizer/text.h"

namespace duet::tokenizer {
namespace {

constexpr size_t kMaxPieceBytes = 1024;   // trained models: 16 characters
constexpr size_t kMaxNestedSymbols = 64;  // PrefixMatcher's results on its stack
constexpr size_t kMaxSelfTestBytes = 1 << 16;

// ---- protobuf wire format (protobuf.dev/programming-guides/encoding)

struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;  // 0 varint, 1 fixed64, 2 bytes, 5 fixed32
  uint64_t value = 0;      // varint and fixed
  std::string_view bytes;  // wire type 2
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : rest_(message) {}

  // False at the end of the message and on a malformed field; ok() tells which.
  bool next(Field& field) {
    if (rest_.empty()) return false;
    ok_ = read(field);
    return ok_;
  }
  bool ok() const { return ok_; }

 private:
  bool read_varint(uint64_t& value, size_t max_bytes) {
    value = 0;
    for (size_t i = 0; i < max_bytes && i < rest_.size(); ++i) {
      const auto byte = static_cast<uint8_t>(rest_[i]);
      value |= uint64_t{byte & 0x7Fu} << (7 * i);
      if (byte < 0x80) {
        rest_.remove_prefix(i + 1);
        return true;
      }
    }
    return false;
  }

  bool read_fixed(uint64_t& value, size_t bytes) {
    if (rest_.size() < bytes) return false;
    value = 0;
    std::memcpy(&value, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return true;
  }

  bool read(Field& field) {
    uint64_t tag = 0;
    if (!read_varint(tag, 5) || tag > UINT32_MAX || tag >> 3 == 0) return false;
    field.number = static_cast<uint32_t>(tag >> 3);
    field.wire_type = static_cast<uint32_t>(tag & 7);
    switch (field.wire_type) {
      case 0:
        return read_varint(field.value, 10);
      case 1:
        return read_fixed(field.value, 8);
      case 5:
        return read_fixed(field.value, 4);
      case 2: {
        uint64_t length = 0;
        if (!read_varint(length, 5) || length > rest_.size()) return false;
        field.bytes = rest_.substr(0, length);
        rest_.remove_prefix(length);
        return true;
      }
      default:
        return false;  // groups: no version of the format has them
    }
  }

  std::string_view rest_;
  bool ok_ = true;
};

// ---- character map: a double array of u32 units (github.com/s-yata/darts-clone)

class CharacterMap {
 public:
  static constexpr uint32_t kMaxMatches = 32;          // Normalizer's results on its stack
  static constexpr size_t kMaxReplacementBytes = 256;  // NFKC's longest has 33

  CharacterMap(std::string_view trie, std::string_view replacements)
      : units_(trie.size() / 4), replacements_(replacements) {
    std::memcpy(units_.data(), trie.data(), units_.size() * 4);
  }

  Status check() const {
    DUET_TRY(check_replacements());
    DUET_TRY(check_units());
    return check_walks();
  }

 private:
  // Everything about a unit is in its 32 bits.
  static uint32_t label(uint32_t unit) {
    return unit & 0x800000FFu;
  }  // > 255: holds a value, never matches a byte
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }
  static bool has_value(uint32_t unit) { return (unit & 0x100u) != 0; }
  // Where the children of the unit at `index` are: at base ^ byte; its value is at base.
  uint32_t base(uint32_t index) const { return index ^ offset(units_[index]); }

  Status check_replacements() const {
    if (replacements_.empty() || replacements_.back() != '\0')
      return failure(ErrorCode::kBadInput, "the character map's replacements do not end with NUL");
    size_t run = 0;
    for (char c : replacements_) {
      run = c == '\0' ? 0 : run + 1;
      if (run > kMaxReplacementBytes)
        return failure(ErrorCode::kBadInput, "the character map has a replacement of more than {} bytes",
                       kMaxReplacementBytes);
    }
    return {};
  }

  // No step from any unit leaves the array. The builder fills whole blocks of 256, so that true maps pass.
  Status check_units() const {
    for (uint32_t i = 0; i < units_.size(); ++i) {
      if (label(units_[i]) > 0xFF) continue;
      if ((base(i) | 0xFFu) >= units_.size())
        return failure(ErrorCode::kBadInput, "the character map's trie leaves its {} units at unit {}",
                       units_.size(), i);
      if (!has_value(units_[i])) continue;
      const uint32_t value = units_[base(i)] & 0x7FFFFFFFu;
      if (value >= replacements_.size())
        return failure(ErrorCode::kBadInput, "the character map's trie has value {}, expected less than {}",
                       value, replacements_.size());
    }
    return {};
  }

  // Depth-first from the root: no walk comes back to a state it is in, none collects more than kMaxMatches
  // values.
  Status check_walks() const {
    if (label(units_[0]) > 0xFF) return failure(ErrorCode::kBadInput, "the character map's trie has no root");
    const auto count = static_cast<uint32_t>(units_.size());
    constexpr uint32_t kNone = UINT32_MAX;
    // A unit with label L is a child of the states with base (index ^ L): lists of children by base.
    std::vector<uint32_t> first_child(count, kNone), next_child(count, kNone);
    for (uint32_t i = count; i-- > 0;) {
      if (label(units_[i]) > 0xFF) continue;
      const uint32_t parent_base = i ^ label(units_[i]);
      next_child[i] = first_child[parent_base];
      first_child[parent_base] = i;
    }

    struct Frame {
      uint32_t base;
      uint32_t child;
    };
    constexpr uint8_t kUnseen = 0xFF, kOpen = 0xFE;
    std::vector<uint8_t> matches(count, kUnseen);  // most values met on a walk from a base, itself excluded
    std::vector<Frame> stack;
    auto enter = [&](uint32_t state_base) {
      matches[state_base] = kOpen;
      stack.push_back({state_base, first_child[state_base]});
    };
    enter(base(0));
    while (!stack.empty()) {
      Frame& top = stack.back();
      if (top.child == kNone) {
        uint32_t most = 0;
        for (uint32_t c = first_child[top.base]; c != kNone; c = next_child[c])
          most = std::max(most, matches[base(c)] + uint32_t{has_value(units_[c])});
        if (most > kMaxMatches)
          return failure(ErrorCode::kBadInput, "the character map's trie nests more than {} keys",
                         kMaxMatches);
        matches[top.base] = static_cast<uint8_t>(most);
        stack.pop_back();
        continue;
      }
      const uint32_t child_base = base(top.child);
      top.child = next_child[top.child];
      if (matches[child_base] == kOpen)
        return failure(ErrorCode::kBadInput, "the character map's trie has a loop at unit {}", child_base);
      if (matches[child_base] == kUnseen) enter(child_base);
    }
    return {};
  }

  std::vector<uint32_t> units_;  // a copy: the blob need not be aligned
  std::string_view replacements_;
};

// ---- the messages of a model

Status malformed(const char* message) {
  return failure(ErrorCode::kBadInput, "not a SentencePiece model: {} is not a well-formed protobuf message",
                 message);
}

Status check_normalizer(std::string_view message, const char* name) {
  FieldReader reader(message);
  std::optional<std::string_view> map;
  for (Field field; reader.next(field);) {
    if (field.number != 2 || field.wire_type != 2) continue;
    if (map) return failure(ErrorCode::kBadInput, "{} has two character maps", name);
    map = field.bytes;
  }
  if (!reader.ok()) return malformed(name);
  if (!map || map->empty()) return {};
  return check_character_map(*map);
}

class PieceChecker {
 public:
  Status add(std::string_view message) {
    FieldReader reader(message);
    std::string_view piece;
    float score = 0;
    uint64_t type = 1;
    int pieces = 0;
    for (Field field; reader.next(field);) {
      if (field.number == 1 && field.wire_type == 2) piece = field.bytes, ++pieces;
      if (field.number == 2 && field.wire_type == 5)
        score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
      if (field.number == 3 && field.wire_type == 0) type = field.value;
    }
    if (!reader.ok()) return malformed("a piece");
    const uint32_t id = count_++;
    if (pieces != 1 || piece.empty() || piece.size() > kMaxPieceBytes)
      return failure(ErrorCode::kBadInput, "piece {} has {} bytes, expected 1 to {}", id, piece.size(),
                     kMaxPieceBytes);
    if (!is_valid_utf8(piece) || piece.find('\0') != std::string_view::npos)
      return failure(ErrorCode::kBadInput, "piece {} is not UTF-8 without NUL", id);
    if (!std::isfinite(score))
      return failure(ErrorCode::kBadInput, "piece {} '{}' has score {}", id, piece, score);
    constexpr uint64_t kUnknown = 2, kUserDefined = 4;
    if (type == kUnknown) ++unknowns_;
    if (type == kUserDefined) symbols_.push_back(piece);
    return {};
  }

  Status finish() {
    if (unknowns_ != 1)
      return failure(ErrorCode::kBadInput, "{} pieces with {} of type <unk>, expected one", count_,
                     unknowns_);
    std::sort(symbols_.begin(), symbols_.end());
    std::vector<std::string_view> prefixes;
    for (std::string_view symbol : symbols_) {
      while (!prefixes.empty() && !symbol.starts_with(prefixes.back())) prefixes.pop_back();
      prefixes.push_back(symbol);
      if (prefixes.size() > kMaxNestedSymbols)
        return failure(ErrorCode::kBadInput, "more than {} user-defined symbols are prefixes of one another",
                       kMaxNestedSymbols);
    }
    return {};
  }

  uint32_t count() const { return count_; }

 private:
  uint32_t count_ = 0;
  uint32_t unknowns_ = 0;
  std::vector<std::string_view> symbols_;
};

}  // namespace

Status check_character_map(std::string_view map) {
  uint32_t trie_bytes = 0;
  if (map.size() >= 4) std::memcpy(&trie_bytes, map.data(), 4);
  if (map.size() < 4 || trie_bytes == 0 || trie_bytes % 1024 != 0 || trie_bytes > map.size() - 4)
    return failure(
        ErrorCode::kBadInput,
        "the character map of {} bytes says its trie has {}, expected a multiple of 1024 that fits",
        map.size(), trie_bytes);
  return CharacterMap(map.substr(4, trie_bytes), map.substr(4 + size_t{trie_bytes})).check();
}

Result<SentencePieceSummary> check_sentencepiece(std::string_view model) {
  constexpr uint32_t kPieces = 1, kTrainer = 2, kNormalizer = 3, kSelfTest = 4, kDenormalizer = 5;
  FieldReader reader(model);
  PieceChecker pieces;
  uint32_t seen[6] = {};
  for (Field field; reader.next(field);) {
    if (field.number > kDenormalizer || field.wire_type != 2) continue;
    if (field.number != kPieces && seen[field.number]++ != 0)
      return failure(ErrorCode::kBadInput, "field {} of the SentencePiece model occurs twice", field.number);
    switch (field.number) {
      case kPieces:
        DUET_TRY(pieces.add(field.bytes));
        break;
      case kTrainer:
        break;
      case kNormalizer:
        DUET_TRY(check_normalizer(field.bytes, "normalizer_spec"));
        break;
      case kSelfTest:
        if (field.bytes.size() > kMaxSelfTestBytes)
          return failure(ErrorCode::kBadInput, "self-test samples of {} bytes, expected at most {}",
                         field.bytes.size(), kMaxSelfTestBytes);
        break;
      case kDenormalizer:
        DUET_TRY(check_normalizer(field.bytes, "denormalizer_spec"));
        break;
    }
  }
  if (!reader.ok())
    return failure(ErrorCode::kBadInput, "not a SentencePiece model: not a well-formed protobuf");
  DUET_TRY(pieces.finish());
  return SentencePieceSummary{pieces.count()};
}

}  // namespace duet::tokenizer
