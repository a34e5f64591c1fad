// Calls every method of a program with junk of every boundary size, and looks whether the session keeps what
// it promises. Behind `duet validate`.
//
//  - Calls that are allowed by what the inputs declare run in two sessions at once, one with one thread and
//    one with several threads and a workspace full of NaNs: both must take or refuse them alike, give outputs
//    of the declared shapes, and the same bits in outputs and state.
//  - Calls that are not allowed (an input too many or too few, a wrong dtype or rank, a size or an element
//    just outside its bounds, an element twice, a wrong sum) must be refused.
//  - A refused call must leave the state as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "memory/error.h"
#include "model/program.h"
#include "model/session.h"

namespace duet::runner {

struct ValidateOptions {
  model::SessionOptions session;  // of the session with several threads; at least 2
  int random_calls = 100;         // further calls of any method in any order, after the boundary sizes
  uint64_t seed = 0;
  std::function<bool(uint64_t calls)> progress = nullptr;  // told after every call; false stops
};

struct MethodValidation {
  std::string method;
  uint64_t accepted = 0;    // allowed calls that ran
  uint64_t refused = 0;     // allowed calls that the state did not permit, e.g. a slot that is not in use
  uint64_t impossible = 0;  // sizes for which no inputs exist that keep all the rules, or only huge ones
  uint64_t forbidden = 0;   // calls that are not allowed, all of them refused unless there is a problem
};

struct ValidationReport {
  std::vector<MethodValidation> methods;
  std::vector<std::string> problems;  // the first 20; empty: all promises kept
  uint64_t problem_count = 0;
};

// Errors: those of Session::create; kInterrupted when progress() says so.
Result<ValidationReport> validate(std::shared_ptr<const model::Program> program,
                                  const ValidateOptions& options);

}  // namespace duet::runner
