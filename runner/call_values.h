// Inputs of any method: values that a person writes on a command line, and inputs made up from what the
// program declares about them. Everything is checked against the sizes that a session was planned for before
// memory is taken for it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "model/program.h"
#include "runner/multi_entry_point_runner.h"

namespace duet::runner {

// Where a value goes. `symbols` are the values of the definition's symbols in its order, dynamic ones at the
// largest size that a call may have: MemoryPlan::symbols.
struct CallTarget {
  const model::ProgramDefinition& definition;
  const model::Method& method;
  std::span<const int64_t> symbols;
};

// Pseudo-random numbers that anybody can make again: element i of seed s is the output of splitmix64 (Vigna
// 2015) whose state is s + (i + 1) * 0x9e3779b97f4a7c15.
uint64_t random_bits(uint64_t seed, uint64_t index);

// --- Values of the command line: VALUE of name=VALUE is one of
//   [1,2,3]  [[1.5],[2]]  7  true        a literal, nested for more dimensions
//   ones[10,20]  zeros[3]  range[4]      what they say: range counts 0, 1, 2, ... in row-major order
//   rand[10,20]  rand[3]@7               random_bits of a seed [0]: floats in [-1, 1); integers and bools in
//                                        the bounds that the input declares (else 0 to 255), distinct where
//                                        it says so
//   ones:i32[3]                          the same, and the input must be i32
//   FILE.npy                             NumPy's format, see runner/npy.h
//   FILE:f32[10,20]                      raw little-endian elements, row-major
// The dtype is the input's: numbers are converted when they keep their value; floats may be rounded.
// Errors: kUsage for what is not one of these or does not fit the input; kIo and kBadInput for files.
// Messages name method, input and value.
Result<Tensor> parse_value(const CallTarget& target, const model::InputSpec& input, std::string_view text);

// --- Inputs made up

// Elements of a made-up input; what the input declares (min_value, max_value, distinct, sums_to) goes first:
// ones and zeros are moved into the bounds, range counts within them again and again, distinct elements are
// made different, and elements that must add up are as even as they can be (for rand: not).
enum class Fill : uint8_t { kOnes, kZeros, kRange, kRand };
std::optional<Fill> parse_fill(std::string_view name);  // "ones", "zeros", "range", "rand"

// The inputs of a method that are not among `given`, of the largest sizes that fit `given` and what inputs
// declare. Where lengths must add up to a number of tokens, the given one decides about the other. Input i
// has the seed random_bits(seed, i). Errors: kUsage when there are no such inputs, or when they
// have more than 2^25 elements together.
Result<std::map<std::string, Tensor>> fill_inputs(const CallTarget& target,
                                                  const std::map<std::string, Tensor>& given, Fill fill,
                                                  uint64_t seed);

// One input whose dimensions are the target's symbols as they stand: for calls of chosen sizes. Errors: those
// of fill_inputs().
Result<Tensor> make_input(const CallTarget& target, const model::InputSpec& input, Fill fill, uint64_t seed);

// One input of these dimensions. Errors: those of fill_inputs().
Result<Tensor> make_tensor(const CallTarget& target, const model::InputSpec& input, std::vector<int64_t> dims,
                           Fill fill, uint64_t seed);

}  // namespace duet::runner
