// A session's state in a file: what its shared buffers hold, with what they belong to. docs/state-format.md
// describes the bytes. Loading checks everything but the values in the buffers: those are the operators' own
// business, as they are when a method writes them.
#pragma once

#include <cstdint>
#include <string>

#include "memory/error.h"
#include "model/program.h"
#include "model/session.h"

namespace duet::runner {

inline constexpr char kStateMagic[8] = {'D', 'U', 'E', 'T', 'S', 'T', 'A', 'T'};
inline constexpr uint32_t kStateVersion = 1;
inline constexpr uint64_t kStateFixedBytes =
    24;                                          // magic, u32 version, u32 zero, u64 bytes of the JSON header
inline constexpr uint64_t kStateAlignment = 64;  // of the shared bytes
inline constexpr uint64_t kMaxStateHeaderBytes = uint64_t{16} << 20;

// A number that two programs share when methods, operators, symbols, buffers and constants (by their
// checksums) are the same. Names and help that only a person reads do not count.
uint64_t program_identity(const model::ProgramDefinition& definition);

// Written as PATH.part, synced and renamed. Errors: kIo.
Status save_state(model::Session& session, const std::string& path);

// Errors, after which the session is as it was: kIo; kBadInput for what is no state file or is damaged;
// kUsage for a state of another program or other limits, the message says which. (A file that changes while
// it is read is kBadInput too; then the session's state is of no use any more.)
Status load_state(model::Session& session, const std::string& path);

}  // namespace duet::runner
