// A program file: opened, planned, and its methods called with what they ask for. The input is a JSON header
// up to the first line feed, then data; fixed part, seal and padding are made here, so that mutations reach
// the checks behind them.
#include <cstring>

#include "model/memory_plan.h"
#include "model/program.h"
#include "model/program_header.h"
#include "model/program_verify.h"
#include "model/session.h"
#include "runner/call_values.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace duet;

constexpr uint64_t kMostPlanned = 32 << 20;
constexpr uint64_t kMostInputBytes = 1 << 18;

std::string program_file(std::string_view input) {
  size_t end = input.find('\n');
  std::string_view header = input.substr(0, end == std::string_view::npos ? end : end + 1);
  std::string_view data = end == std::string_view::npos ? "" : input.substr(end + 1);
  model::FixedPart fixed = model::fixed_part(header);
  std::string file(reinterpret_cast<const char*>(&fixed), sizeof fixed);
  file += header;
  file.resize(model::data_start(header.size()));
  return file.append(data);
}

// Every method twice, with made-up inputs of the largest sizes, when those are small.
void call_all(model::Session& session) {
  const auto& definition = session.program().definition();
  for (int round = 0; round < 2; ++round)
    for (size_t m = 0; m < definition.methods.size(); ++m) {
      const model::Method& method = definition.methods[m];
      runner::CallTarget target{definition, method, session.plan().symbols};
      std::vector<runner::Tensor> tensors;
      std::vector<model::TensorView> views;
      for (const model::InputSpec& spec : method.inputs) {
        auto most = model::tensor_bytes(definition, spec, session.plan().symbols);
        if (!most || *most > kMostInputBytes) break;
        auto tensor = runner::make_input(target, spec, round ? runner::Fill::kRand : runner::Fill::kOnes, m);
        if (!tensor) break;
        tensors.push_back(std::move(*tensor));
      }
      for (const runner::Tensor& tensor : tensors) views.push_back(tensor.view());
      (void)session.execute(static_cast<int>(m), views);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile file;
  std::string_view input = fuzz::text_of(data, size);
  file.set(input.starts_with("DUET") ? std::string(input) : program_file(input));
  auto program = model::Program::open(file.path());
  if (!program) return 0;
  (void)model::verify_bytes(**program);
  auto plan = model::plan_memory((*program)->definition(), {}, 1);
  if (!plan || plan->total_bytes() > kMostPlanned) return 0;
  auto session = model::Session::create(*program, {});
  if (session) call_all(**session);
  return 0;
}
