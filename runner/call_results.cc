#include "runner/call_results.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>

#include "model/operators/operator.h"
#include "runner/npy.h"
#include "runner/report.h"
#include "runner/tensor_text.h"
#include "runner/whole_file.h"

namespace duet::runner {

using model::TensorView;
using model::ValueRef;

std::vector<uint32_t> written_buffers(const model::Method& method) {
  std::vector<uint32_t> buffers;
  for (const model::Operation& operation : method.operations)
    for (int input : operation.op->written_inputs()) {
      if (static_cast<size_t>(input) >= operation.inputs.size()) continue;
      ValueRef ref = operation.inputs[static_cast<size_t>(input)];
      if (ref.space == ValueRef::Space::kShared &&
          std::find(buffers.begin(), buffers.end(), ref.index) == buffers.end())
        buffers.push_back(ref.index);
    }
  return buffers;
}

std::string file_name_part(const std::string& name) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  constexpr size_t kMost = 60;  // such that three parts, a number and an ending are below 255
  std::string part = name.substr(0, kMost);
  for (char& c : part)
    if (kPlain.find(c) == std::string_view::npos) c = '_';
  if (part.starts_with('.')) part[0] = '_';
  return part;
}

Result<CallResults> CallResults::open(model::Session& session, const ResultOptions& options) {
  if (!options.directory.empty()) {
    std::error_code problem;
    std::filesystem::create_directories(options.directory, problem);
    if (problem)
      return failure(ErrorCode::kIo, "{}: cannot make the directory: {}", options.directory,
                     problem.message());
    if (!std::filesystem::is_directory(options.directory, problem))
      return failure(ErrorCode::kIo, "{}: is no directory", options.directory);
  }
  DUET_ASSIGN(TextOutput output, TextOutput::open(""));
  return CallResults(session, options, std::move(output));
}

Status CallResults::add(const model::Method& method, std::span<const TensorView> outputs) {
  const auto& shared = session_->program().definition().shared;
  auto named = [&](const std::string& name) { return fmt::format("{}.{}", name, calls_); };
  auto written = written_buffers(method);
  if (options_.print != "none" && outputs.empty() && written.empty())
    DUET_TRY(show(printable(named(method.name)) + ": no outputs\n"));
  for (size_t i = 0; i < outputs.size(); ++i)
    DUET_TRY(add_tensor(method.name, method.outputs[i].name, outputs[i]));
  for (uint32_t buffer : written)
    DUET_TRY(add_tensor(method.name, "state." + shared[buffer].name, session_->shared(shared[buffer].name)));
  if (options_.list_state) DUET_TRY(show(state_table(named(method.name))));
  ++calls_;
  return unless_closed(output_.flush());
}

Status CallResults::finish() { return unless_closed(output_.finish()); }

Status CallResults::show(std::string_view text) {
  return has_reader_ ? unless_closed(output_.write(text)) : Status();
}

Status CallResults::unless_closed(Status status) {
  if (status || status.error().code != ErrorCode::kClosedPipe) return status;
  has_reader_ = false;
  return {};
}

Status CallResults::add_tensor(const std::string& call, const std::string& name, const TensorView& tensor) {
  if (options_.print != "none") {
    DUET_TRY(show(printable(fmt::format("{}.{}.{}: ", call, calls_, name))));
    DUET_TRY(write_tensor_text(tensor, options_.print == "all",
                               [&](std::string_view text) { return show(text); }));
    DUET_TRY(show("\n"));
  }
  return options_.directory.empty() ? Status() : write_file(call, name, tensor);
}

Status CallResults::write_file(const std::string& call, const std::string& name, const TensorView& tensor) {
  std::string stem = fmt::format("{}.{}.{}", file_name_part(call), calls_, file_name_part(name));
  std::string unique = stem;
  for (int i = 2; !files_.insert(unique).second; ++i) unique = fmt::format("{}~{}", stem, i);
  std::string path = options_.directory + "/" + unique + "." + options_.format;
  if (options_.format == "npy") return write_npy(path, tensor);
  std::span<const std::byte> parts[] = {{tensor.data, tensor.bytes()}};
  return write_whole_file(path, parts);
}

std::string CallResults::state_table(const std::string& call) {
  using enum Table::Align;
  const auto& shared = session_->program().definition().shared;
  Table table({{"buffer"}, {"offset", kRight}, {"dtype"}, {"shape"}, {"XXH3-64"}});
  for (size_t i = 0; i < shared.size(); ++i) {
    TensorView view = session_->shared(shared[i].name);
    table.add({printable(shared[i].name), std::to_string(session_->plan().shared_offsets[i]),
               std::string(model::dtype_name(view.dtype)),
               fmt::format("[{}]", fmt::join(std::span(view.dims, static_cast<size_t>(view.rank)), ", ")),
               fmt::format("{:016x}", XXH3_64bits(view.data, view.bytes()))});
  }
  return fmt::format("state after {}: {} bytes\n", printable(call), session_->plan().shared_bytes) +
         table.text("  ");
}

}  // namespace duet::runner
