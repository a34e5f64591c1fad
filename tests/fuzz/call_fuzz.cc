// Sequences of calls of a small translation program, with any inputs and with damage to its state in between:
// what `duet call` lets a user do, --load-state included.
#include <algorithm>

#include "model/exporter.h"
#include "model/session.h"
#include "tests/fuzz/fuzz.h"
#include "tests/model/support.h"

namespace {

using namespace duet;

std::shared_ptr<const model::Program> small_program() {
  model::MultiEntryPointExporter exporter;
  model::build_small_marian(exporter);
  model::TemporaryDirectory directory;
  return model::save_and_open(exporter, directory);
}

// One call: a method, sizes and elements mostly within the bounds that it declares, sometimes not.
void call(model::Session& session, fuzz::Choices& choices) {
  const auto& definition = session.program().definition();
  const auto m = choices.below(static_cast<uint32_t>(definition.methods.size()));
  const model::Method& method = definition.methods[m];
  std::vector<int64_t> sizes(definition.symbols.size(), -1);
  std::vector<std::vector<std::byte>> memory;
  std::vector<model::TensorView> views;
  for (const model::InputSpec& spec : method.inputs) {
    model::TensorView view;
    view.dtype = choices.byte() == 255 ? model::DType::kF32 : spec.dtype;
    view.rank = static_cast<int>(spec.shape.size());
    for (int axis = 0; axis < view.rank; ++axis) {
      const model::Dim& dim = spec.shape[static_cast<size_t>(axis)];
      auto at = dim.kind() == model::Expression::Kind::kSymbol ? definition.symbol_index(dim.symbol())
                                                               : sizes.size();
      view.dims[axis] = at == sizes.size() ? dim.value() : sizes[at] >= 0 ? sizes[at] : 1 + choices.below(9);
      if (at < sizes.size()) sizes[at] = view.dims[axis];
    }
    memory.emplace_back(view.bytes());
    std::vector<std::byte> raw(memory.back().size() / 4);
    choices.fill(raw);
    for (size_t i = 0; i < raw.size(); ++i) {  // small numbers, -1 and the largest among them
      auto value = static_cast<int32_t>(static_cast<int8_t>(raw[i]));
      if (value == -128) value = INT32_MAX;
      std::copy_n(reinterpret_cast<const std::byte*>(&value), 4, memory.back().data() + 4 * i);
    }
    view.data = memory.back().data();
    views.push_back(view);
  }
  (void)session.execute(static_cast<int>(m), views);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto program = small_program();
  fuzz::Choices choices(data, size);
  model::SessionOptions options;
  options.limits["slots"] = 1 + choices.below(4);
  auto session = model::Session::create(program, options);
  if (!session) return 0;
  for (int calls = 0; calls < 64 && !choices.empty(); ++calls) {
    auto state = (*session)->shared_arena();
    if (choices.byte() % 16 == 15 && !state.empty()) {  // a state that a file brought, or a careless program
      size_t at = choices.below(static_cast<uint32_t>(std::min<size_t>(state.size(), 65536)));
      choices.fill(state.subspan(at, std::min<size_t>(4, state.size() - at)));
    }
    call(**session, choices);
  }
  return 0;
}
