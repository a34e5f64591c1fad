// duet plan: where every buffer of every method would lie under given limits. Opens the program, plans and
// prints; maps no arena and starts no thread.
#include <algorithm>

#include "memory/plan_picture.h"
#include "model/memory_plan.h"
#include "runner/command_line.h"
#include "runner/report.h"

namespace duet::runner {
namespace {

using Json = nlohmann::ordered_json;
using memory::ArenaId;
using model::BufferPlan;
using model::MemoryPlan;
using model::MethodPlan;

constexpr const char* kHelp = R"(Shows the memory that a session would use, without making one.

For each method: its buffers with arena, offset, size and the operators during
which they are live, and a picture of the workspace over the method's steps.)";

constexpr const char* kFooter = R"(Examples:
  duet plan --slots 4 --max-source-tokens 21 --max-target-tokens 40
  duet plan en-de.duet --slots 64 --json | jq .total_bytes)";

constexpr const char* kArenaNames[] = {"workspace", "shared", "io"};
constexpr ArenaId kArenas[] = {ArenaId::kWorkspace, ArenaId::kShared, ArenaId::kIo};

struct Options {
  ProgramOption program;
  LimitOptions limits;
  bool json = false;
};

const char* arena_name(ArenaId id) { return kArenaNames[static_cast<size_t>(id)]; }

uint64_t arena_bytes(const MemoryPlan& plan, ArenaId id) {
  return id == ArenaId::kWorkspace ? plan.workspace_bytes
         : id == ArenaId::kShared  ? plan.shared_bytes
                                   : plan.io_bytes;
}

// Every limit of the program, and the threads.
Json limits_json(const model::ProgramDefinition& definition, const MemoryPlan& plan) {
  Json limits = Json::object();
  for (size_t i = 0; i < definition.symbols.size(); ++i)
    if (definition.symbols[i].kind == model::Symbol::Kind::kLimit)
      limits[definition.symbols[i].name] = plan.symbols[i];
  limits["threads"] = plan.threads;
  return limits;
}

// --- JSON

Json method_json(const MethodPlan& method) {
  Json json = {{"name", method.name},
               {"steps", method.steps},
               {"arena_bytes", method.arena_bytes},
               {"naive_bytes", method.naive_bytes},
               {"lower_bound_bytes", method.lower_bound_bytes},
               {"io_bytes", method.io_bytes},
               {"shared_bytes", method.shared_bytes},
               {"buffers", Json::array()}};
  for (const BufferPlan& buffer : method.buffers)
    json["buffers"].push_back({{"name", buffer.name},
                               {"arena", static_cast<int>(buffer.arena)},
                               {"offset", buffer.offset},
                               {"bytes", buffer.bytes},
                               {"first", buffer.first},
                               {"last", buffer.last},
                               {"shared", buffer.arena == ArenaId::kShared}});
  return json;
}

Json plan_json(const model::Program& program, const MemoryPlan& plan) {
  Json json = {{"program", program.path()},
               {"limits", limits_json(program.definition(), plan)},
               {"arenas", Json::array()},
               {"methods", Json::array()}};
  for (ArenaId id : kArenas)
    json["arenas"].push_back(
        {{"id", static_cast<int>(id)}, {"name", arena_name(id)}, {"bytes", arena_bytes(plan, id)}});
  for (const MethodPlan& method : plan.methods) json["methods"].push_back(method_json(method));
  json["total_bytes"] = plan.total_bytes();
  return json;
}

// --- Text

// The picture of a method's workspace. Its legend would repeat the table of buffers: it only gives the
// letters to the table's rows, in `letters`, one for each buffer of `requests`.
std::string picture(const std::vector<memory::BufferRequest>& requests, const memory::ArenaPlan& plan,
                    std::vector<std::string>& letters) {
  constexpr size_t kMostLetters = 62;  // of draw_plan()
  auto numbered = requests;
  for (size_t i = 0; i < numbered.size(); ++i) numbered[i].name = std::to_string(i);
  std::vector<std::string> lines;
  std::string text = memory::draw_plan(numbered, plan);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(text.substr(at, end - at));
  size_t lettered = std::min(requests.size(), kMostLetters), others = requests.size() > lettered ? 1 : 0;
  letters.assign(requests.size(), "+");
  DUET_CHECK(lines.size() > lettered + others);
  size_t legend = lines.size() - lettered - others;
  for (size_t i = legend; i < legend + lettered; ++i) letters[std::stoul(lines[i].substr(2))] = lines[i][0];
  std::string drawing;
  for (size_t i = 1; i < legend; ++i)
    drawing += "  " + lines[i] + "\n";  // the first line's totals stand elsewhere
  return drawing;
}

// One method's buffers in one arena; `letters` may be empty.
std::string buffer_table(const std::vector<const BufferPlan*>& buffers,
                         const std::vector<std::string>& letters) {
  using enum Table::Align;
  std::vector<Table::Column> columns = {
      {"buffer"}, {"offset", kRight}, {"bytes", kRight}, {"operators", kRight}};
  if (!letters.empty()) columns.insert(columns.begin(), {""});
  Table table(std::move(columns));
  for (size_t i = 0; i < buffers.size(); ++i) {
    const BufferPlan& buffer = *buffers[i];
    std::vector<std::string> cells = {printable(buffer.name), with_commas(buffer.offset),
                                      with_commas(buffer.bytes),
                                      fmt::format("{}..{}", buffer.first, buffer.last)};
    if (!letters.empty()) cells.insert(cells.begin(), letters[i]);
    table.add(std::move(cells));
  }
  return table.text("  ");
}

std::string workspace_text(const MethodPlan& method, const std::vector<const BufferPlan*>& buffers) {
  std::vector<memory::BufferRequest> requests;
  memory::ArenaPlan arena;
  for (const BufferPlan* buffer : buffers) {
    requests.push_back({buffer->name, buffer->bytes, buffer->first, buffer->last});
    arena.offsets.push_back(buffer->offset);
  }
  arena.arena_bytes = method.arena_bytes;
  arena.naive_bytes = method.naive_bytes;
  arena.lower_bound_bytes = method.lower_bound_bytes;
  std::vector<std::string> letters;
  std::string drawing = picture(requests, arena, letters);
  std::string text = buffer_table(buffers, letters);
  text += fmt::format(
      "  sum of all buffers (naive)  {:>14} bytes\n  most live at once (bound)   {:>14} bytes\n"
      "  arena                       {:>14} bytes, {:.3f} of the bound, {:.3f} of the sum\n",
      with_commas(method.naive_bytes), with_commas(method.lower_bound_bytes), with_commas(method.arena_bytes),
      static_cast<double>(method.arena_bytes) / static_cast<double>(method.lower_bound_bytes),
      static_cast<double>(method.arena_bytes) / static_cast<double>(method.naive_bytes));
  return text + drawing;
}

std::string method_text(const MethodPlan& method) {
  std::string text = fmt::format("\nmethod {}: {} operators\n", printable(method.name), method.steps);
  const uint64_t used[] = {method.arena_bytes, method.shared_bytes, method.io_bytes};
  for (ArenaId id : kArenas) {
    std::vector<const BufferPlan*> buffers;
    for (const BufferPlan& buffer : method.buffers)
      if (buffer.arena == id) buffers.push_back(&buffer);
    if (buffers.empty()) continue;
    text += fmt::format("\n {} (arena {}), {} bytes\n", arena_name(id), static_cast<int>(id),
                        with_commas(used[static_cast<size_t>(id)]));
    text += id == ArenaId::kWorkspace && method.arena_bytes > 0 ? workspace_text(method, buffers)
                                                                : buffer_table(buffers, {});
  }
  return text;
}

std::string plan_text(const model::Program& program, const MemoryPlan& plan) {
  std::string text = fmt::format("program {}\nlimits ", printable(program.path()));
  Json limits = limits_json(program.definition(), plan);
  for (const auto& [name, value] : limits.items())
    text += fmt::format(" {} {}{}", printable(name), value.get<int64_t>(), name == "threads" ? "\n" : ",");
  for (const MethodPlan& method : plan.methods) text += method_text(method);
  text += "\nThe whole session: all methods overlay the same workspace and io arena.\n";
  Table table({{"arena"}, {"bytes", Table::Align::kRight}});
  for (ArenaId id : kArenas)
    table.add(
        {fmt::format("{} {}", static_cast<int>(id), arena_name(id)), with_commas(arena_bytes(plan, id))});
  table.add({"total", with_commas(plan.total_bytes())});
  return text + table.text("  ");
}

Result<int> run(const Options& options) {
  DUET_ASSIGN(auto program, options.program.open());
  model::SessionOptions session = options.limits.session();
  DUET_ASSIGN(auto plan, model::plan_memory(program->definition(), session.limits, session.threads));
  DUET_TRY(options.json ? print_json(plan_json(*program, plan)) : print(plan_text(*program, plan)));
  return 0;
}

}  // namespace

void add_plan_command(CLI::App& app, Command& chosen) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("plan", kHelp);
  command->footer(kFooter);
  options->program.add_to(*command);
  command->add_flag("--json", options->json, "One JSON object instead of tables and pictures");
  options->limits.add_to(*command);
  command->callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace duet::runner
