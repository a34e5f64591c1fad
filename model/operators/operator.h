// One step of a method. An operator is made from its kind and attributes, is immutable, and is shared by
// sessions. It knows its shapes, its scratch memory, its work, its fast kernel and its decomposition into
// primitives.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"
#include "model/program.h"
#include "model/tensor_view.h"

namespace duet::model {

class Primitives;

// An operand as an operator sees it when a program is checked. spec is null for an optional operand left out.
struct OperandSpec {
  const TensorSpec* spec = nullptr;
  bool writable = false;               // a shared buffer
  const Constant* constant = nullptr;  // set when the operand is a constant
};

struct Worker {
  int index = 0;
  int count = 1;
  // This worker's share [begin, end) of `items` pieces of work.
  struct Range {
    int64_t begin, end;
  };
  Range share(int64_t items) const { return {items * index / count, items * (index + 1) / count}; }
};

struct Step {
  std::span<const TensorView> inputs;
  std::span<const TensorView> outputs;
  std::byte* scratch = nullptr;
  std::string_view name;
};

struct Cost {
  int64_t macs = 0;         // multiply-accumulates
  int64_t bytes_moved = 0;  // weights, activations and caches read and written once
};

class Operator {
 public:
  virtual ~Operator() = default;
  virtual std::string_view kind() const = 0;

  // Checks operands and gives the dtype and shape of each output. Errors: kBadInput, without the operator's
  // name.
  virtual Result<std::vector<TensorSpec>> infer(std::span<const OperandSpec> inputs) const = 0;

  // Which inputs are changed in place (they must be shared buffers).
  virtual std::vector<int> written_inputs() const { return {}; }
  // An input whose memory output 0 may take over when this is its last use; -1 for none.
  virtual int reusable_input() const { return -1; }
  // False: worker 0 alone runs it (state and index operators: short, in order).
  virtual bool parallel() const { return true; }
  // Scratch memory for operands at their largest sizes.
  virtual uint64_t scratch_bytes(const Step& largest, int workers) const {
    (void)largest, (void)workers;
    return 0;
  }
  virtual Cost cost(const Step& step) const = 0;

  // Runs this worker's share with the fast kernels. Allocates nothing unless it fails.
  virtual Status run(const Step& step, Worker worker) const = 0;
  // A short serial pass after all workers have run; by worker 0, if finishes().
  virtual bool finishes() const { return false; }
  virtual Status finish(const Step& step) const {
    (void)step;
    return {};
  }

  // The same in primitives: the canonical meaning of the operator. Writes the outputs (and in-place state).
  virtual Status decompose(const Step& step, Primitives& p) const = 0;
};

// Errors: kBadInput for an unknown kind and for attributes that are missing, surplus or of the wrong type.
Result<std::shared_ptr<const Operator>> make_operator(const std::string& kind, const Attributes& attributes);
std::vector<std::string> operator_kinds();

// Typed access to attributes for the factories; finish() reports what was wrong, the surplus ones included.
class AttributeReader {
 public:
  explicit AttributeReader(const Attributes& attributes) : attributes_(attributes) {}
  int64_t integer(const std::string& name, int64_t min, int64_t max);
  int64_t integer_or(const std::string& name, int64_t fallback, int64_t min, int64_t max);
  double number(const std::string& name);
  double number_or(const std::string& name, double fallback);
  std::string text_or(const std::string& name, const std::string& fallback);
  std::vector<std::string> texts_or_empty(const std::string& name);
  std::vector<int64_t> integers_or_empty(const std::string& name);
  Status finish() const;

 private:
  template <class T>
  const T* find(const std::string& name, bool required);
  const Attributes& attributes_;
  std::vector<std::string> known_;
  std::string problem_;
};

using OperatorFactory = std::shared_ptr<const Operator> (*)(AttributeReader&);
struct OperatorRow {
  const char* kind;
  OperatorFactory make;
};
// One table per file of operators.
std::span<const OperatorRow> tensor_operators();     // fill, write_block, add, gather_rows, ragged_index
std::span<const OperatorRow> layer_operators();      // embed, linear, norm
std::span<const OperatorRow> attention_operators();  // attend_ragged, cache_write, attend_cached
std::span<const OperatorRow>
state_operators();  // open_slots, extend_slots, release_slots, forced_tokens, advance
std::span<const OperatorRow> select_operators();  // select_argmax

// Checks shared by the operators' infer().
Status expect_count(std::span<const OperandSpec> inputs, size_t least, size_t most);
Status expect_tensor(const OperandSpec& operand, const char* role, DType dtype, int rank);
Status expect_panels(const OperandSpec& operand,
                     const char* role);  // f32 [N, K], a constant stored in panels
Status expect_dim(const OperandSpec& operand, const char* role, int axis, const Dim& expected);

}  // namespace duet::model
