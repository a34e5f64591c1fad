// Runs any method of any program by name: what examples and tests of stateful programs stand on. (`duet call`
// needs outputs in their order, and calls the session itself.)
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/error.h"
#include "memory/in_use.h"
#include "model/program.h"
#include "model/session.h"

namespace duet::runner {

// A tensor that owns its memory. Row-major.
struct Tensor {
  model::DType dtype = model::DType::kF32;
  std::vector<int64_t> dims;
  std::vector<std::byte> data;

  template <class T>
  static Tensor of(model::DType dtype, std::vector<int64_t> dims, std::span<const T> values) {
    auto bytes = std::as_bytes(values);
    return {dtype, std::move(dims), {bytes.begin(), bytes.end()}};
  }
  static Tensor i32(std::vector<int64_t> dims, std::span<const int32_t> values) {
    return of(model::DType::kI32, std::move(dims), values);
  }
  static Tensor f32(std::vector<int64_t> dims, std::span<const float> values) {
    return of(model::DType::kF32, std::move(dims), values);
  }
  template <class T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(data.data()), data.size() / sizeof(T)};
  }
  // For a session, which only reads it. REQUIRES: at most kMaxRank dimensions.
  model::TensorView view() const;
};

class MultiEntryPointRunner {
 public:
  // Errors: those of Program::open and Session::create.
  static Result<MultiEntryPointRunner> load(const std::string& path, const model::SessionOptions& options);
  // Another session over a program that is open already.
  static Result<MultiEntryPointRunner> load(std::shared_ptr<const model::Program> program,
                                            const model::SessionOptions& options);

  std::vector<std::string> methods() const;

  // Outputs by name. Errors: kUsage for an unknown method, for inputs that are missing, surplus or do not
  // fit, and for a call while another thread's call runs.
  Result<std::map<std::string, Tensor>> execute(const std::string& method,
                                                const std::map<std::string, Tensor>& inputs);

  model::Session& session() { return *session_; }
  const model::Program& program() const { return session_->program(); }

 private:
  explicit MultiEntryPointRunner(std::unique_ptr<model::Session> session) : session_(std::move(session)) {}
  std::unique_ptr<model::Session> session_;
  memory::InUseFlag in_use_;
};

}  // namespace duet::runner
