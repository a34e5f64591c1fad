#include "runner/multi_entry_point_runner.h"

#include <algorithm>
#include <cstring>

namespace duet::runner {

using model::TensorView;

TensorView Tensor::view() const {
  DUET_CHECK(dims.size() <= model::kMaxRank);
  TensorView view{const_cast<std::byte*>(data.data()), dtype, static_cast<int>(dims.size()), {}};
  std::copy(dims.begin(), dims.end(), view.dims);
  return view;
}

Result<MultiEntryPointRunner> MultiEntryPointRunner::load(const std::string& path,
                                                          const model::SessionOptions& options) {
  DUET_ASSIGN(auto program, model::Program::open(path));
  return load(std::move(program), options);
}

Result<MultiEntryPointRunner> MultiEntryPointRunner::load(std::shared_ptr<const model::Program> program,
                                                          const model::SessionOptions& options) {
  DUET_ASSIGN(auto session, model::Session::create(std::move(program), options));
  return MultiEntryPointRunner(std::move(session));
}

std::vector<std::string> MultiEntryPointRunner::methods() const {
  std::vector<std::string> names;
  for (const model::Method& method : program().definition().methods) names.push_back(method.name);
  return names;
}

Result<std::map<std::string, Tensor>> MultiEntryPointRunner::execute(
    const std::string& name, const std::map<std::string, Tensor>& inputs) {
  int index = session_->find_method(name);
  if (index < 0)
    return failure(ErrorCode::kUsage, "no method \"{}\"; the program has: {}", name,
                   fmt::join(methods(), ", "));
  const model::Method& method = program().definition().methods[static_cast<size_t>(index)];
  std::vector<TensorView> views;
  std::string missing;
  for (const model::InputSpec& spec : method.inputs) {
    auto given = inputs.find(spec.name);
    if (given == inputs.end()) {
      missing += (missing.empty() ? "" : ", ") + spec.name;
      continue;
    }
    const Tensor& tensor = given->second;
    if (tensor.dims.size() > model::kMaxRank)
      return failure(ErrorCode::kUsage, "method {}: input {} has {} dimensions, expected at most {}", name,
                     spec.name, tensor.dims.size(), model::kMaxRank);
    uint64_t bytes = model::element_bytes(tensor.dtype);
    for (int64_t dim : tensor.dims)
      if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes))
        return failure(ErrorCode::kUsage, "method {}: input {} has a dimension of {}", name, spec.name, dim);
    if (bytes != tensor.data.size())
      return failure(ErrorCode::kUsage, "method {}: input {} has {} bytes, its shape says {}", name,
                     spec.name, tensor.data.size(), bytes);
    views.push_back(tensor.view());
  }
  if (!missing.empty()) return failure(ErrorCode::kUsage, "method {}: inputs not given: {}", name, missing);
  for (const auto& [given, tensor] : inputs) {
    bool known = false;
    for (const model::InputSpec& spec : method.inputs) known = known || spec.name == given;
    if (!known) return failure(ErrorCode::kUsage, "method {} has no input \"{}\"", name, given);
  }
  memory::InUse in_use(in_use_);  // until the outputs are copied
  if (!in_use)
    return failure(ErrorCode::kUsage,
                   "method {}: the runner is in use by another call; make one for each thread", name);
  DUET_ASSIGN(auto outputs, session_->execute(index, views));
  std::map<std::string, Tensor> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    Tensor tensor{outputs[i].dtype, {outputs[i].dims, outputs[i].dims + outputs[i].rank}, {}};
    tensor.data.resize(outputs[i].bytes());
    std::memcpy(tensor.data.data(), outputs[i].data, tensor.data.size());
    results.emplace(method.outputs[i].name, std::move(tensor));
  }
  return results;
}

}  // namespace duet::runner
