// VALUE of `duet call`: literals, generators and file names, for inputs of every dtype.
#include "runner/call_values.h"
#include "tests/fuzz/fuzz.h"
#include "tests/model/support.h"

namespace {

using namespace duet;

std::shared_ptr<const model::Program> program_of_every_dtype() {
  model::MultiEntryPointExporter exporter;
  exporter.limit("most", 1, 64, 8);
  exporter.dynamic("n", 0, "most");
  auto& m = exporter.method("run");
  using enum model::DType;
  for (auto dtype : {kF32, kF64, kI32, kI64, kU8, kBool}) {
    m.input(std::string("plain_") + std::string(model::dtype_name(dtype)), dtype, {"n", 3});
  }
  model::InputSpec bounded;
  bounded.name = "bounded";
  bounded.dtype = kI32;
  bounded.shape = {"n"};
  bounded.min_value = 2;
  bounded.max_value = "most";
  bounded.distinct = true;
  m.input(bounded);
  model::TemporaryDirectory directory;
  return model::save_and_open(exporter, directory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto program = program_of_every_dtype();
  static const auto symbols = *model::resolve_symbols(program->definition(), {});
  std::string_view text = fuzz::text_of(data, size);
  if (text.find('/') != std::string_view::npos) return 0;  // no device of the machine
  const model::Method& method = *program->definition().find_method("run");
  for (const model::InputSpec& input : method.inputs)
    (void)runner::parse_value({program->definition(), method, symbols}, input, text);
  return 0;
}
