// Builds programs with several entry points over shared state, by hand or from an importer:
//
//   MultiEntryPointExporter exporter;
//   exporter.limit("rows", 1, 10, 10);
//   exporter.dynamic("n", 1, "rows");
//   exporter.buffer("cache.keys", DType::kF32, {"rows", 20});
//   exporter.register_shared_prefix("cache.");
//   auto& set = exporter.method("set_cache");
//   set.call("write_block", "set", {set.input("k", DType::kF32, {"n", 20}), "cache.keys"});
//   exporter.method("get_cache").output("k", "cache.keys");
//   exporter.example("set_cache", {{"k", {DType::kF32, {3, 20}}}});
//   exporter.save("cache.duet");
//
// Mistakes are kept and reported by the first call that returns a Result, so that building code needs no
// branches.
#pragma once

#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "model/program.h"

namespace duet::model {

class MultiEntryPointExporter;

class MethodBuilder {
 public:
  // Operands and results are named by strings; "" leaves an optional operand out.
  std::string input(InputSpec spec);
  std::string input(const std::string& name, DType dtype, Shape shape);
  // Adds an operator; gives the names of its outputs: `result`, or result.0, result.1, … when it has several.
  std::vector<std::string> call_all(const std::string& kind, const std::string& name,
                                    std::vector<std::string> inputs, Attributes attributes = {},
                                    const std::string& result = "");
  std::string call(const std::string& kind, const std::string& name, std::vector<std::string> inputs,
                   Attributes attributes = {}, const std::string& result = "");
  void output(const std::string& name, const std::string& tensor);

 private:
  friend class MultiEntryPointExporter;
  MethodBuilder(MultiEntryPointExporter& exporter, std::string name) : exporter_(exporter) {
    method_.name = std::move(name);
  }
  ValueRef find(const std::string& tensor);
  std::string add_value(TensorSpec spec);

  MultiEntryPointExporter& exporter_;
  Method method_;
  std::map<std::string, uint32_t> values_;
  std::set<uint32_t> buffers_used_;
};

class MultiEntryPointExporter {
 public:
  void limit(const std::string& name, Expression min, Expression max, Expression standard,
             const std::string& help = "");
  void derived(const std::string& name, Expression value);
  void dynamic(const std::string& name, Expression min, Expression max, const std::string& help = "");

  // Row-major values; panels are made here. Takes over the memory where it can.
  void constant(const std::string& name, std::vector<float> values, std::vector<int64_t> dims,
                Layout layout = Layout::kRows);
  void constant(const std::string& name, const std::vector<int32_t>& values, std::vector<int64_t> dims);

  // State that outlives a call. A buffer that more than one method uses must be registered as shared.
  void buffer(const std::string& name, DType dtype, Shape shape,
              std::optional<double> initial = std::nullopt);
  void register_shared(const std::string& name);
  void register_shared_prefix(const std::string& prefix);

  MethodBuilder& method(const std::string& name);
  // A method without inputs that gives a constant.
  void constant_method(const std::string& name, const std::string& constant);

  // A call as users are expected to make it, for finish() to check with limits at their defaults: every input
  // of the method is there and no other, with its dtype and a shape within the bounds of its sizes. It stands
  // beside the code that builds the method and fails the export when the two drift apart; it is not stored.
  struct ExampleInput {
    DType dtype;
    std::vector<int64_t> dims;
  };
  using Example = std::map<std::string, ExampleInput>;  // by the input's name
  void example(const std::string& method, Example inputs);

  void section(const std::string& name, std::string bytes);
  nlohmann::ordered_json& metadata() { return definition_.metadata; }

  // The checked definition with et_module_init in front; valid as long as the exporter. Errors: kBadInput.
  Result<const ProgramDefinition*> finish();
  Status save(const std::string& path);

 private:
  friend class MethodBuilder;
  void report(std::string problem);
  std::span<const std::byte> keep(std::vector<std::byte> bytes);
  Status check_registrations() const;
  Status check_example(const std::string& method, const Example& inputs) const;
  Method init_method() const;

  ProgramDefinition definition_;
  std::deque<std::unique_ptr<MethodBuilder>> methods_;
  std::vector<std::pair<std::string, Example>> examples_;
  std::deque<std::vector<std::byte>> bytes_;
  std::set<std::string> registered_, registered_prefixes_;
  std::string problem_;
};

}  // namespace duet::model
