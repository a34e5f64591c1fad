// plan, info, tokenize and bench as a user runs them, on the program that ships with Duet.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runner/bench.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

using namespace std::string_literals;  // for text with NUL
using Json = nlohmann::json;

Json json_of(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  Json json = Json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << result.out.substr(0, 200);
  return json;
}

std::string shipped_program() {
  return (std::filesystem::path(duet_path()).parent_path().parent_path() / "share/duet/tatoeba-en-fr.duet")
      .string();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// --- plan

using Limits = std::map<std::string, int64_t>;

class PlanTest : public testing::TestWithParam<Limits> {
 protected:
  static std::vector<std::string> arguments(const std::string& command) {
    std::vector<std::string> all = {command};
    for (const auto& [name, value] : GetParam()) {
      std::string option = "--" + name;
      std::replace(option.begin() + 2, option.end(), '_', '-');
      all.push_back(option);
      all.push_back(std::to_string(value));
    }
    return all;
  }
  static Json plan() {
    auto command = arguments("plan");
    command.push_back("--json");
    return json_of(run_duet(command));
  }
};

bool live_together(const Json& a, const Json& b) {
  return a["first"] <= b["last"] && b["first"] <= a["last"];
}
uint64_t begin_of(const Json& buffer) { return buffer["offset"].get<uint64_t>(); }
uint64_t end_of(const Json& buffer) { return begin_of(buffer) + buffer["bytes"].get<uint64_t>(); }

TEST_P(PlanTest, NoTwoLiveBuffersOfAnArenaOverlapAndAllLieInsideTheirArena) {
  Json json = plan();
  for (const Json& method : json["methods"]) {
    const Json& buffers = method["buffers"];
    for (size_t i = 0; i < buffers.size(); ++i) {
      const Json& a = buffers[i];
      auto arena = a["arena"].get<size_t>();
      ASSERT_LT(arena, json["arenas"].size());
      EXPECT_EQ(json["arenas"][arena]["id"], arena);
      EXPECT_LE(end_of(a), json["arenas"][arena]["bytes"].get<uint64_t>()) << a;
      if (arena == 0) {
        EXPECT_LE(end_of(a), method["arena_bytes"].get<uint64_t>()) << a;
      }
      EXPECT_EQ(a["shared"], arena == 1) << a;
      EXPECT_LE(a["first"].get<int>(), a["last"].get<int>()) << a;
      EXPECT_LT(a["last"].get<int>(), std::max(1, method["steps"].get<int>())) << a;
      for (size_t k = i + 1; k < buffers.size(); ++k) {
        const Json& b = buffers[k];
        if (a["arena"] != b["arena"] || !live_together(a, b)) continue;
        EXPECT_TRUE(end_of(a) <= begin_of(b) || end_of(b) <= begin_of(a))
            << method["name"] << ": " << a << " and " << b;
      }
    }
  }
}

TEST_P(PlanTest, SharedBuffersHaveOnePlaceInAllMethods) {
  Json json = plan();
  std::map<std::string, std::pair<uint64_t, uint64_t>> places;
  std::map<std::string, int> uses;
  for (const Json& method : json["methods"])
    for (const Json& buffer : method["buffers"]) {
      if (!buffer["shared"]) continue;
      std::pair place(begin_of(buffer), end_of(buffer));
      auto [found, is_first] = places.try_emplace(buffer["name"], place);
      EXPECT_EQ(found->second, place) << method["name"] << ": " << buffer;
      ++uses[buffer["name"]];
    }
  EXPECT_GE(places.size(), 4u);
  EXPECT_EQ(uses["decoder.layers.0.kv_cache"], 3);  // et_module_init, reset_encode_prefill, decode
}

TEST_P(PlanTest, TheArenaIsWithinFivePercentOfTheLowerBoundWhichIsTheMostThatIsLiveAtOnce) {
  for (const Json& method : plan()["methods"]) {
    uint64_t arena = method["arena_bytes"], bound = method["lower_bound_bytes"],
             naive = method["naive_bytes"];
    EXPECT_LE(bound, arena);
    EXPECT_LE(arena, naive);
    EXPECT_LE(static_cast<double>(arena), 1.05 * static_cast<double>(bound)) << method["name"];
    uint64_t most = 0, sum = 0;
    for (int step = 0; step < method["steps"].get<int>(); ++step) {
      uint64_t live = 0;
      for (const Json& buffer : method["buffers"])
        if (buffer["arena"] == 0 && buffer["first"] <= step && step <= buffer["last"])
          live += (buffer["bytes"].get<uint64_t>() + 63) / 64 * 64;
      most = std::max(most, live);
    }
    for (const Json& buffer : method["buffers"])
      if (buffer["arena"] == 0) sum += (buffer["bytes"].get<uint64_t>() + 63) / 64 * 64;
    EXPECT_EQ(most, bound) << method["name"];
    EXPECT_EQ(sum, naive) << method["name"];
  }
}

TEST_P(PlanTest, ItsTotalsAreThoseOfASessionUnderTheSameLimits) {
  Json json = plan();
  uint64_t sum = 0, workspace = 0;
  for (const Json& arena : json["arenas"]) sum += arena["bytes"].get<uint64_t>();
  for (const Json& method : json["methods"])
    workspace = std::max(workspace, method["arena_bytes"].get<uint64_t>());
  EXPECT_EQ(json["total_bytes"], sum);
  EXPECT_EQ(json["arenas"][0]["bytes"], workspace);
  for (const auto& [name, value] : GetParam()) EXPECT_EQ(json["limits"][name], value);
  for (const char* name :
       {"slots", "max_source_tokens", "max_target_tokens", "batch_tokens", "cache_blocks", "threads"})
    EXPECT_TRUE(json["limits"].contains(name)) << name;

  auto command = arguments("translate");
  command.insert(command.end(), {"-q", "--stats", "Hello."});
  auto session = run_duet(command);
  std::string digits = session.err.substr(0, session.err.find(" bytes planned"));
  digits = digits.substr(digits.rfind(' ') + 1);
  std::erase(digits, ',');
  EXPECT_EQ(digits, std::to_string(sum)) << session.err;
}

INSTANTIATE_TEST_SUITE_P(
    Limits, PlanTest,
    testing::Values(Limits{}, Limits{{"slots", 4}, {"max_source_tokens", 21}, {"max_target_tokens", 40}},
                    Limits{{"slots", 100}, {"batch_tokens", 3000}, {"threads", 5}}));

TEST(Plan, AsTextItShowsEveryBufferTheBoundAndAPictureAndMapsNoArena) {
  auto result = run_duet({"plan", "--slots", "4", "--max-source-tokens", "21", "--max-target-tokens", "40"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* part :
       {"method decode", "method reset_encode_prefill", "slots 4", "max_source_tokens 21", "threads",
        "most live at once (bound)", "1.000 of the bound", "decoder.layers.0.kv_cache", "address steps",
        "model.decoder.layers.0.fc1", "total"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
  Json json = json_of(
      run_duet({"plan", "--json", "--slots", "4", "--max-source-tokens", "21", "--max-target-tokens", "40"}));
  // Each buffer has a row, with the letter that stands for it in the picture.
  size_t picture_at = result.out.find("address steps", result.out.find("method decode"));
  std::string picture = result.out.substr(picture_at, result.out.find("\n\n", picture_at) - picture_at);
  for (const Json& method : json["methods"])
    for (const Json& buffer : method["buffers"]) {
      std::string name = buffer["name"];
      size_t at = result.out.find("  " + name + " ",
                                  result.out.find("method " + method["name"].get<std::string>() + ":"));
      ASSERT_NE(at, std::string::npos) << name;
      if (method["name"] == "decode" && buffer["arena"] == 0) {
        EXPECT_NE(picture.find(result.out[at - 1]), std::string::npos)
            << name << " is " << result.out[at - 1];
      }
    }
}

// --- info

TEST(Info, TellsModelSizesMethodsLimitsAndSections) {
  Json json = json_of(run_duet({"info", "--json"}));
  EXPECT_EQ(json["metadata"]["name"], "tatoeba-en-fr");
  EXPECT_EQ(json["metadata"]["source_language"], "en");
  EXPECT_EQ(json["metadata"]["target_language"], "fr");
  EXPECT_EQ(json["metadata"]["architecture"], "marian");
  EXPECT_EQ(json["metadata"]["licence"], "CC BY 2.0 FR");
  EXPECT_EQ(json["file_bytes"].get<uint64_t>(), std::filesystem::file_size(shipped_program()));
  EXPECT_LT(json["weights_bytes"], json["file_bytes"]);
  EXPECT_GT(json["weights_bytes"].get<uint64_t>(), json["parameters"].get<uint64_t>());
  EXPECT_EQ(json["parameters"], 8150488);

  std::map<std::string, Json> methods, limits, sections;
  for (const Json& method : json["methods"]) methods[method["name"]] = method;
  for (const Json& limit : json["limits"]) limits[limit["name"]] = limit;
  for (const Json& section : json["sections"]) sections[section["name"]] = section;
  const Json& input = methods.at("reset_encode_prefill")["inputs"][0];
  EXPECT_EQ(input["name"], "source_tokens");
  EXPECT_EQ(input["dtype"], "i32");
  EXPECT_EQ(input["shape"], Json({"source_batch"}));
  EXPECT_EQ(input["min_value"], 0);
  EXPECT_EQ(input["max_value"], 11223);
  EXPECT_EQ(methods.at("decode")["outputs"][1]["dtype"], "f32");
  EXPECT_EQ(limits.at("slots")["default"], 32);
  EXPECT_EQ(limits.at("slots")["min"], 1);
  EXPECT_EQ(limits.at("slots")["max"], 4096);
  EXPECT_FALSE(limits.at("slots")["help"].get<std::string>().empty());
  EXPECT_GT(limits.at("batch_tokens")["default"], 0);
  EXPECT_GT(sections.at("tokenizer/source.spm")["bytes"], 100000);
  EXPECT_FALSE(json["shared"].empty());

  auto text = run_duet({"info"});
  EXPECT_EQ(text.exit_code, 0);
  for (const char* part :
       {"8,150,488", "CC BY 2.0 FR", "method decode", "max_source_tokens", "tokenizer/source.spm",
        "decoder.layers.0.kv_cache", "i32[source_batch]", "0 .. 11223"})
    EXPECT_NE(text.out.find(part), std::string::npos) << part;
}

TEST(Info, TheProgramMayBeNamedWithOrWithoutM) {
  auto shipped = run_duet({"info", "--json"});
  EXPECT_EQ(run_duet({"info", "--json", shipped_program()}).out,
            run_duet({"info", "--json", "-m", shipped_program()}).out);
  EXPECT_EQ(Json::parse(shipped.out)["weights_bytes"],
            Json::parse(run_duet({"info", shipped_program(), "--json"}).out)["weights_bytes"]);
}

// --- tokenize

struct Golden {
  std::string sources, source_ids, target_ids, translations;  // a line each
  size_t count = 0;
};

std::string ids_line(const Json& ids) {
  std::string line;
  for (const Json& id : ids) line += (line.empty() ? "" : " ") + id.dump();
  return line + "\n";
}

const Golden& golden() {
  static const Golden all = [] {
    Golden made;
    std::ifstream file(std::string(DUET_TEST_DATA) + "/../golden/tatoeba-en-fr/greedy.jsonl");
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line);
      if (json["source"].get<std::string>().find('\n') != std::string::npos) continue;
      made.sources += json["source"].get<std::string>() + "\n";
      made.source_ids += ids_line(json["source_ids"]);
      made.target_ids += ids_line(json["target_ids"]);
      made.translations += json["translation"].get<std::string>() + "\n";
      ++made.count;
    }
    return made;
  }();
  return all;
}

TEST(Tokenize, IdsAreThoseThatTheReferencesTokenizerGives) {
  ASSERT_GE(golden().count, 100u);
  auto result = run_duet({"tokenize", "--ids"}, {.in = golden().sources});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden().source_ids);
}

TEST(Tokenize, DecodeGivesTheReferencesTranslations) {
  auto result = run_duet({"tokenize", "--decode"}, {.in = golden().target_ids});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, golden().translations);
}

TEST(Tokenize, ATranslationThatIsEncodedAsTargetAndDecodedIsTheSame) {
  std::string text = "Bonjour tout le monde.\nOù est la gare ?\n";
  auto ids = run_duet({"tokenize", "--target", "--ids"}, {.in = text});
  EXPECT_EQ(ids.exit_code, 0);
  EXPECT_EQ(run_duet({"tokenize", "--decode"}, {.in = ids.out}).out, text);
  EXPECT_NE(ids.out, run_duet({"tokenize", "--ids"}, {.in = text}).out);
}

TEST(Tokenize, PiecesAreOnePerIdWithoutTheFinalOne) {
  EXPECT_EQ(run_duet({"tokenize", "Hello World"}).out, "▁Hello ▁W orld\n");
  EXPECT_EQ(run_duet({"tokenize", "Hello World", ""}).out, "▁Hello ▁W orld\n\n");
  EXPECT_EQ(run_duet({"tokenize", "--ids", "Hello World"}).out, "2224 2781 1236 0\n");
}

TEST(Tokenize, EveryLineGivesOneLineWhateverItsBytes) {
  std::string in = "Hello World\r\n\nHello\0World\nHello\u2028World\nHello \xff World\nHello World"s;
  auto result = run_duet({"tokenize", "--ids"}, {.in = in});
  EXPECT_EQ(result.exit_code, 0);
  auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 6u) << result.out;
  EXPECT_EQ(lines[0], "2224 2781 1236 0");
  EXPECT_EQ(lines[1], "0");
  EXPECT_EQ(lines[5], "2224 2781 1236 0");
  EXPECT_FALSE(result.out.ends_with("\n")) << "the input had no final line feed";
  EXPECT_NE(result.err.find("standard input: line 5: 1 invalid UTF-8 sequence replaced by U+FFFD"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(run_duet({"tokenize", "--ids", "-q"}, {.in = in}).err, "");
}

TEST(Tokenize, ALineIsAnsweredBeforeTheNextOneComes) {
  RunningCommand command({duet_path(), "tokenize"});
  ASSERT_TRUE(command.write("Hello\n"));
  EXPECT_TRUE(command.wait_for_out("▁Hello\n", 30));
  ASSERT_TRUE(command.write("Where\n"));
  EXPECT_TRUE(command.wait_for_out("▁Where\n", 30));
  EXPECT_EQ(command.finish().exit_code, 0);
}

TEST(Tokenize, AnInterruptKeepsWholeLinesAndExitsWith130) {
  RunningCommand command({duet_path(), "tokenize"});
  ASSERT_TRUE(command.write("Hello\nHel"));
  ASSERT_TRUE(command.wait_for_out("▁Hello\n", 30));
  command.send_signal(SIGINT);
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out, "▁Hello\n");
}

TEST(Tokenize, ABadIdIsAnErrorWithLineValueAndRangeAndKeepsTheLinesBefore) {
  for (std::string word : {"x", "-1", "11224", "99999999999999999999", "1.5", "0x10", "5,6", "+5"}) {
    auto result = run_duet({"tokenize", "--decode"}, {.in = "1947 6945 7423 19 0\n19 " + word + "\n19\n"});
    EXPECT_EQ(result.exit_code, 3) << word;
    EXPECT_EQ(result.out, "Bonjour le monde.\n");
    EXPECT_EQ(result.err,
              "duet: standard input: line 2: token id \"" + word + "\", expected a number from 0 to 11223\n");
  }
  auto argument = run_duet({"tokenize", "--decode", "19 " + std::string(1000, '9')});
  EXPECT_EQ(argument.exit_code, 3);
  EXPECT_NE(argument.err.find("arguments: line 1"), std::string::npos);
  EXPECT_LT(argument.err.size(), 200u);
}

TEST(Tokenize, AnEmptyLineOfIdsIsAnEmptyText) {
  EXPECT_EQ(run_duet({"tokenize", "--decode"}, {.in = "\n  19\t0 \r\n"}).out, "\n.\n");
}

// --- bench

void expect_spread(const Json& spread, double least, double most) {
  EXPECT_LE(spread["min"], spread["median"]);
  EXPECT_LE(spread["median"], spread["max"]);
  EXPECT_GE(spread["min"].get<double>(), least) << spread;
  EXPECT_LE(spread["max"].get<double>(), most) << spread;
}

TEST(BenchCommand, MeasuresEachNumberOfSlotsAndSaysWhatItCounts) {
  std::string in = "Hello World\n\nGood morning.\nWhere is the station?\n";
  Json json = json_of(run_duet({"bench", "--json", "--seconds", "0", "--repeat", "2", "--slots-list", "1,3",
                                "--threads", "2", "--max-source-tokens", "64", "-i", "-"},
                               {.in = in}));
  const Json& settings = json["settings"];
  EXPECT_EQ(settings["threads"], 2);
  EXPECT_EQ(settings["text"], "standard input");
  EXPECT_EQ(settings["text_lines"], 3);
  EXPECT_EQ(settings["text_sentences"], 3);
  EXPECT_GT(settings["text_source_tokens"], 3);
  EXPECT_GT(settings["text_target_tokens"], 3);
  EXPECT_EQ(settings["repeat"], 2);
  EXPECT_FALSE(settings["kernels"].get<std::string>().empty());
  EXPECT_FALSE(settings["counted"].get<std::string>().empty());
  EXPECT_EQ(settings["program_bytes"].get<uint64_t>(), std::filesystem::file_size(shipped_program()));
  ASSERT_EQ(json["throughput"].size(), 2u);
  for (const Json& t : json["throughput"]) {
    for (const char* rate : {"target_tokens_per_second", "source_tokens_per_second", "sentences_per_second"})
      expect_spread(t[rate], 0.01, 1e7);
    expect_spread(t["decode_step_milliseconds"], 1e-4, 6e4);
    EXPECT_GE(t["mean_slots_in_use"], 1.0);
    EXPECT_LE(t["mean_slots_in_use"].get<double>(), t["slots"].get<double>());
    // The rates are of the same seconds, so they stand in the ratio of what they count.
    EXPECT_NEAR(
        t["target_tokens_per_second"]["max"].get<double>() / t["sentences_per_second"]["max"].get<double>(),
        settings["text_target_tokens"].get<double>() / settings["text_sentences"].get<double>(), 1e-6);
    auto plan = json_of(run_duet(
        {"plan", "--json", "--threads", "2", "--max-source-tokens", "64", "--slots", t["slots"].dump()}));
    EXPECT_EQ(t["planned_bytes"], plan["total_bytes"]);
    for (const auto& [name, value] : t["limits"].items()) EXPECT_EQ(value, plan["limits"][name]) << name;
  }
  EXPECT_EQ(json["throughput"][0]["slots"], 1);
  EXPECT_EQ(json["throughput"][1]["slots"], 3);
  expect_spread(json["load_to_first_token_milliseconds"], 1e-3, 6e4);
  EXPECT_EQ(json["latency_milliseconds"]["sentences_measured"], 6);
  EXPECT_LE(json["latency_milliseconds"]["min"], json["latency_milliseconds"]["p50"]);
  EXPECT_LE(json["latency_milliseconds"]["p50"], json["latency_milliseconds"]["p95"]);
  EXPECT_LE(json["latency_milliseconds"]["p95"], json["latency_milliseconds"]["max"]);
  EXPECT_EQ(json["translations_identical"], true);
}

TEST(BenchCommand, AsTextItsColumnsHaveUnitsAndItsOwnTextServesWithoutAFile) {
  auto result = run_duet({"bench", "--seconds", "0", "--repeat", "1", "--slots", "16"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"built in: 40 lines", "target tokens/s", "ms/decode step", "bytes planned",
                           "latency p95", "threads", "kernels", "counted"})
    EXPECT_NE(result.out.find(part), std::string::npos) << part;
}

TEST(BenchCommand, AnInterruptEndsItWith130) {
  RunningCommand command({duet_path(), "bench", "--seconds", "3000"}, {.terminal_err = true});
  ASSERT_TRUE(command.wait_for_err("1 slots", 30));
  command.send_signal(SIGINT);
  EXPECT_EQ(command.finish().exit_code, 130);
}

TEST(Bench, DifferentTranslationsOfALineAreSeen) {
  Agreement agreement;
  agreement.add(0, 1, "un");
  agreement.add(1, 1, "deux");
  agreement.add(0, 8, "un");
  EXPECT_TRUE(agreement.differences().empty());
  agreement.add(1, 8, "trois");
  agreement.add(1, 32, "quatre");
  ASSERT_EQ(agreement.differences().size(), 1u);
  const Difference& difference = agreement.differences()[0];
  EXPECT_EQ(difference.line, 2u);
  EXPECT_EQ(difference.slots, 1);
  EXPECT_EQ(difference.other_slots, 8);
  EXPECT_EQ(difference.translation, "deux");
  EXPECT_EQ(difference.other, "trois");
}

TEST(Bench, MediansAndPercentilesAreByRank) {
  EXPECT_EQ(spread_of({3, 1, 2}).median, 2);
  EXPECT_EQ(spread_of({4, 1, 2, 3}).median, 2.5);
  EXPECT_EQ(spread_of({3, 1, 2}).min, 1);
  EXPECT_EQ(spread_of({3, 1, 2}).max, 3);
  std::vector<double> hundred;
  for (int i = 100; i > 0; --i) hundred.push_back(i);
  EXPECT_EQ(percentile(hundred, 0.50), 50);
  EXPECT_EQ(percentile(hundred, 0.95), 95);
  EXPECT_EQ(percentile({7}, 0.95), 7);
}

// --- What all of them do

class CommandTest : public testing::TestWithParam<std::string> {
 protected:
  static std::vector<std::string> with(std::vector<std::string> more) {
    std::vector<std::string> all = {GetParam()};
    if (GetParam() == "bench")
      all.insert(all.end(), {"--seconds", "0", "--repeat", "1", "--slots-list", "2", "-q"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_P(CommandTest, HelpHasAnExampleAndGoesToStandardOutput) {
  auto result = run_duet({GetParam(), "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("Example"), std::string::npos);
  EXPECT_NE(result.out.find("  duet " + GetParam()), std::string::npos);
  EXPECT_EQ(result.err, "");
}

TEST_P(CommandTest, AMistypedOptionIsAUsageErrorOfOneLineWithAHint) {
  auto result = run_duet(with({"--progam", "x"}));
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find("did you mean --program?"), std::string::npos) << result.err;
  EXPECT_EQ(lines_of(result.err).size(), 1u);
}

TEST_P(CommandTest, AMissingProgramAndOneThatIsNoneAreToldApart) {
  auto missing = run_duet(with({"-m", "/nonexistent/x.duet"}));
  EXPECT_EQ(missing.exit_code, 4);
  EXPECT_NE(missing.err.find("/nonexistent/x.duet"), std::string::npos);
  auto wrong = run_duet(with({"-m", std::string(DUET_TEST_DATA) + "/commands_test.cc"}));
  EXPECT_EQ(wrong.exit_code, 3);
  EXPECT_NE(wrong.err.find("commands_test.cc"), std::string::npos);
  EXPECT_EQ(wrong.out, "");
}

TEST_P(CommandTest, AFullDiskIsAnErrorAndAClosedPipeAQuietEnd) {
  auto full = run_duet(with({}), {.in = "Hello\n", .out_path = "/dev/full"});
  EXPECT_EQ(full.exit_code, 4);
  EXPECT_NE(full.err.find("No space left on device"), std::string::npos) << full.err;
  RunningCommand command([&] {
    auto all = with({});
    all.insert(all.begin(), duet_path());
    return all;
  }());
  command.close_out();
  command.write("Hello\n");
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

INSTANTIATE_TEST_SUITE_P(Commands, CommandTest, testing::Values("plan", "info", "tokenize", "bench"),
                         [](const auto& command) { return command.param; });

TEST(Commands, LimitsOutOfRangeAreUsageErrorsThatNameTheRange) {
  for (const char* command : {"plan", "bench"}) {
    auto slots = run_duet({command, "--slots", "5000"});
    EXPECT_EQ(slots.exit_code, 2) << command;
    EXPECT_NE(slots.err.find("slots is 5000, expected 1 to 4096"), std::string::npos) << slots.err;
    auto threads = run_duet({command, "--threads", "0"});
    EXPECT_EQ(threads.exit_code, 2) << command;
    EXPECT_NE(threads.err.find("threads is 0"), std::string::npos) << threads.err;
  }
}

TEST(Commands, OptionsThatExcludeEachOtherAreUsageErrors) {
  EXPECT_EQ(run_duet({"tokenize", "--ids", "--decode"}).exit_code, 2);
  EXPECT_EQ(run_duet({"tokenize", "--target", "--decode"}).exit_code, 2);
  EXPECT_EQ(run_duet({"bench", "--slots", "3", "--slots-list", "1,2"}).exit_code, 2);
  for (const char* list : {"1,two", "0", "-1", "1,5000"})
    EXPECT_EQ(run_duet({"bench", "--slots-list", list}).exit_code, 2) << list;
  for (const char* repeat : {"0", "1001", "x"})
    EXPECT_EQ(run_duet({"bench", "--repeat", repeat}).exit_code, 2) << repeat;
  for (const char* seconds : {"-1", "nan", "1e9", "x"})
    EXPECT_EQ(run_duet({"bench", "--seconds", seconds}).exit_code, 2) << seconds;
  EXPECT_EQ(run_duet({"plan", "a.duet", "b.duet"}).exit_code, 2);
}

TEST(Commands, ABenchWithoutTextIsBadInput) {
  auto result = run_duet({"bench", "-i", "-"}, {.in = "\n  \n"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "duet: standard input: no text to translate\n");
}

}  // namespace
}  // namespace duet::runner
