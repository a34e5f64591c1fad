// Looks at every byte of a program file, which opening it does not: duet verify.
#pragma once

#include <cstdint>

#include "memory/error.h"
#include "model/program.h"

namespace duet::model {

struct VerifiedBytes {
  uint64_t header = 0, sections = 0,
           constants = 0;  // fixed part and JSON header; bytes shared by two count twice
  uint64_t padding = 0;    // zeros up to the next multiple of 64
};

// What opening has not verified yet: the checksum of every constant; that padding is zero; that nothing else
// lies in the file. A program that opens and passes is, byte for byte, what was written. Reads the whole
// file. Errors: kBadInput naming the constant or the place; kIo when the file shrinks meanwhile.
Result<VerifiedBytes> verify_bytes(const Program& program);

}  // namespace duet::model
