// Errors as values, for every folder. A function that can fail returns Result<T> or Status; a message names
// the file, the field, the value, what was expected and what to do. Broken invariants of our own code are
// DUET_CHECKs.
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

namespace duet::memory {

enum class ErrorCode {
  kUsage,        // the caller asked for something that does not exist or does not fit (exit code 2)
  kBadInput,     // a model, program or text file is wrong (3)
  kUnsupported,  // a model asks for something that Duet does not do (3)
  kIo,           // the operating system refused a file operation (4)
  kOutOfMemory,  // (4)
  kExhausted,    // a session's limits are used up: no free slot or cache block; later calls may succeed (4)
  kInterrupted,  // (130)
  kClosedPipe,   // nobody reads the output any more: a quiet end (0)
};

struct Error {
  ErrorCode code;
  std::string message;
};

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

template <class... Args>
[[nodiscard]] tl::unexpected<Error> failure(ErrorCode code, fmt::format_string<Args...> format,
                                            Args&&... args) {
  return tl::make_unexpected(Error{code, fmt::format(format, std::forward<Args>(args)...)});
}

// The exit code that a command ends with for an error: 2 usage, 3 bad model or input, 4 I/O or memory, 130
// interrupted.
int exit_code(ErrorCode code);

[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace duet::memory

namespace duet {
using memory::Error;
using memory::ErrorCode;
using memory::failure;
using memory::Result;
using memory::Status;
}  // namespace duet

// Returns the error of a Status or Result to the caller.
#define DUET_TRY(expression)                                                        \
  do {                                                                              \
    auto duet_status_ = (expression);                                               \
    if (!duet_status_) return tl::make_unexpected(std::move(duet_status_).error()); \
  } while (false)

// DUET_ASSIGN(auto x, f()): x is f()'s value, or f()'s error is returned to the caller.
#define DUET_ASSIGN(declaration, expression) \
  DUET_ASSIGN_IMPL_(declaration, expression, DUET_CONCAT_(duet_result_, __LINE__))
#define DUET_CONCAT_(a, b) DUET_CONCAT_IMPL_(a, b)
#define DUET_CONCAT_IMPL_(a, b) a##b
#define DUET_ASSIGN_IMPL_(declaration, expression, temporary)               \
  auto temporary = (expression);                                            \
  if (!temporary) return tl::make_unexpected(std::move(temporary).error()); \
  declaration = std::move(*temporary)

// A condition that only a bug in Duet can break.
#define DUET_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::duet::memory::check_failed(__FILE__, __LINE__, #condition))
