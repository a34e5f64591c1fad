#include "model/program_verify.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "model/program_header.h"

namespace duet::model {
namespace {

struct Range {
  uint64_t begin, end;
};

// Every constant is looked at, so that one line tells how far the damage goes.
Status check_constants(const std::vector<Constant>& constants) {
  const Constant* damaged = nullptr;
  uint64_t actual = 0, others = 0;
  for (const Constant& constant : constants) {
    uint64_t checksum = XXH3_64bits(constant.data.data(), constant.data.size());
    if (checksum == constant.checksum) continue;
    if (damaged) {
      ++others;
      continue;
    }
    damaged = &constant;
    actual = checksum;
  }
  if (!damaged) return {};
  return failure(
      ErrorCode::kBadInput,
      "constant \"{}\" is damaged: its checksum is {:016x}, expected {:016x}{}; copy or convert the "
      "program again",
      damaged->name, actual, damaged->checksum,
      others == 0
          ? ""
          : fmt::format("; so {} {} other{}", others == 1 ? "is" : "are", others, others == 1 ? "" : "s"));
}

Result<uint64_t> check_padding(std::span<const std::byte> file, std::vector<Range> used) {
  std::sort(used.begin(), used.end(), [](Range a, Range b) { return a.begin < b.begin; });
  uint64_t end = 0, padding = 0;
  for (Range range : used) {
    if (range.begin > aligned(end))
      return failure(ErrorCode::kBadInput,
                     "bytes {} to {} belong to no section or constant; copy or convert the program again",
                     end, range.begin);
    for (uint64_t at = end; at < range.begin; ++at)
      if (file[at] != std::byte{0})
        return failure(ErrorCode::kBadInput,
                       "byte {}, which is padding, is {:#04x}, expected 0; copy or convert the program again",
                       at, static_cast<int>(file[at]));
    padding += range.begin - std::min(end, range.begin);
    end = std::max(end, range.end);
  }
  if (end != file.size())
    return failure(ErrorCode::kBadInput,
                   "{} bytes behind the last byte of data, which is number {}; expected none",
                   file.size() - end, end);
  return padding;
}

}  // namespace

Result<VerifiedBytes> verify_bytes(const Program& program) {
  auto verified = [&]() -> Result<VerifiedBytes> {
    std::span<const std::byte> file = program.file();
    const ProgramDefinition& definition = program.definition();
    DUET_TRY(check_constants(definition.constants));
    FixedPart fixed{};
    std::memcpy(&fixed, file.data(), sizeof fixed);
    VerifiedBytes bytes{.header = sizeof fixed + fixed.header_bytes};
    std::vector<Range> used = {{0, bytes.header}};
    auto use = [&](std::span<const std::byte> data) {
      auto begin = static_cast<uint64_t>(data.data() - file.data());
      used.push_back({begin, begin + data.size()});
      return data.size();
    };
    for (const auto& [name, data] : definition.sections) bytes.sections += use(data);
    for (const Constant& constant : definition.constants) bytes.constants += use(constant.data);
    DUET_ASSIGN(bytes.padding, check_padding(file, std::move(used)));
    return bytes;
  }();
  DUET_TRY(program.check_file());
  if (!verified) return failure(verified.error().code, "{}: {}", program.path(), verified.error().message);
  return verified;
}

}  // namespace duet::model
