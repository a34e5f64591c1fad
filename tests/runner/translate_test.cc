// duet translate as its users meet it: lines in, lines out, files, pipes, signals, terminals and mistakes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/runner/golden.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;
using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

// Sanitizers reserve terabytes of addresses and keep what is freed.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryTells = false;
#else
constexpr bool kMemoryTells = true;
#endif

CommandResult translate(std::vector<std::string> arguments, CommandOptions options = {}) {
  arguments.insert(arguments.begin(), {"translate", "-q"});
  return run_duet(std::move(arguments), options);
}

CommandResult translate_text(std::string in, std::vector<std::string> arguments = {}) {
  return translate(std::move(arguments), {.in = std::move(in)});
}

// Exit code 2, 3 or 4 with one line on stderr that contains all these.
AssertionResult fails(const CommandResult& result, int code, std::initializer_list<std::string_view> parts) {
  if (result.exit_code != code)
    return AssertionFailure() << "exit code " << result.exit_code << ": " << result.err;
  if (!result.err.starts_with("duet: ") || std::count(result.err.begin(), result.err.end(), '\n') != 1)
    return AssertionFailure() << "not one line: " << result.err;
  for (std::string_view part : parts)
    if (result.err.find(part) == std::string::npos)
      return AssertionFailure() << "no \"" << part << "\" in " << result.err;
  return AssertionSuccess();
}

size_t count_lines(std::string_view text) {
  return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::vector<nlohmann::json> json_lines(const CommandResult& result) {
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<nlohmann::json> all;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

std::string joined_sources(const nlohmann::json& line) {
  std::string all;
  for (const auto& segment : line["segments"]) all += segment["source"].get<std::string>();
  return all;
}

std::string scratch(const std::string& name) {
  static int count = 0;
  fs::path directory = golden::scratch_directory() / std::to_string(++count);
  fs::create_directories(directory);
  return (directory / name).string();
}

std::string write_file(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string repeated(std::string_view text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::vector<nlohmann::json> golden_sentences() {
  std::vector<nlohmann::json> all;
  std::ifstream file(DUET_TEST_DATA "/../golden/tatoeba-en-fr/greedy.jsonl");
  for (std::string line; std::getline(file, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

std::string golden_sources() {
  std::string all;
  for (const auto& sentence : golden_sentences()) all += sentence["source"].get<std::string>() + "\n";
  return all;
}

// What a person sees first.

TEST(Translate, PrintsOneLineForATextAndItsPlanOnStderr) {
  auto result = run_duet({"translate", "Hello."});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Bonjour.\n");
  EXPECT_NE(result.err.find("] Allocated shared buffer for method et_module_init, memory id 1, size "),
            std::string::npos);
  EXPECT_NE(result.err.find("] Reusing shared buffer for method decode, memory id 1"), std::string::npos);
  auto quiet = translate({"Hello."});
  EXPECT_EQ(quiet.out, "Bonjour.\n");
  EXPECT_EQ(quiet.err, "");
  EXPECT_EQ(run_duet({"translate", "--log-level", "warning", "Hello."}).err, "");
}

TEST(Translate, GivesTheReferencesTranslationsOfAFile) {
  std::string sources = write_file(scratch("sources.txt"), golden_sources()), expected;
  auto sentences = golden_sentences();
  ASSERT_GT(sentences.size(), 100u);
  for (const auto& sentence : sentences) expected += sentence["translation"].get<std::string>() + "\n";
  auto plain = translate({"-i", sources, "--max-target-tokens", "128"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, expected);
  auto growing = translate({"-i", sources, "--max-target-tokens", "128", "--stream"});
  EXPECT_EQ(growing.out, expected);
  // Slots and cache too few for all: restarts and waiting change nothing.
  EXPECT_EQ(
      translate({"-i", sources, "--max-target-tokens", "128", "--stream", "--slots", "3", "--threads", "1"})
          .out,
      expected);
}

TEST(Translate, GivesTheReferencesIdsAndLogProbabilitiesAsJson) {
  auto sentences = golden_sentences();
  auto lines = json_lines(translate_text(golden_sources(), {"--json", "--max-target-tokens", "128"}));
  ASSERT_EQ(lines.size(), sentences.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i]["source"].get<std::string>());
    EXPECT_EQ(lines[i]["line"], i + 1);
    ASSERT_EQ(lines[i]["segments"].size(), 1u);
    const auto& segment = lines[i]["segments"][0];
    EXPECT_EQ(segment["source_ids"], sentences[i]["source_ids"]);
    ASSERT_EQ(segment["target_ids"], sentences[i]["target_ids"]);
    EXPECT_EQ(segment["cut"], sentences[i]["cut_at_limit"]);
    double sum = 0;
    for (size_t t = 0; t < segment["token_scores"].size(); ++t) {
      EXPECT_NEAR(segment["token_scores"][t].get<double>(), sentences[i]["token_logprobs"][t].get<double>(),
                  1e-4);
      sum += segment["token_scores"][t].get<double>();
    }
    EXPECT_NEAR(segment["score"].get<double>(), sum, 1e-9);
  }
}

// Lines.

TEST(Translate, KeepsTheLinesAndTheirEnds) {
  EXPECT_EQ(translate_text("").out, "");
  EXPECT_EQ(translate_text("\n").out, "\n");
  EXPECT_EQ(translate_text("\n\n \t \n").out, "\n\n \t \n");
  EXPECT_EQ(translate_text("Hello.").out, "Bonjour.");
  EXPECT_EQ(translate_text("Hello.\n").out, "Bonjour.\n");
  EXPECT_EQ(translate_text("Hello.\r\n\r\nHello.\r\n").out, "Bonjour.\r\n\r\nBonjour.\r\n");
  EXPECT_EQ(translate_text("\n\nHello.\n\nHello.\n\n").out, "\n\nBonjour.\n\nBonjour.\n\n");
  EXPECT_EQ(translate_text("\xEF\xBB\xBFHello.\n").out, "Bonjour.\n");  // a byte order mark
  EXPECT_EQ(translate({"Hello.", "", "Hello."}).out, "Bonjour.\n\nBonjour.\n");
  EXPECT_EQ(translate({"Hello.\nHello."}).out, "Bonjour.\nBonjour.\n");
}

TEST(Translate, EndsLinesAtLineFeedsOnly) {
  for (std::string_view other : {"\r", "\v", "\f", "\xC2\x85", "\xE2\x80\xA8", "\xE2\x80\xA9"})
    for (const char* split : {"line", "sentence"}) {
      std::string line = "Hello." + std::string(other) + "Hello.";
      auto result = translate_text(line + "\nHello.\n", {"--split", split});
      EXPECT_EQ(count_lines(result.out), 2u) << split << ": " << testing::PrintToString(other);
      EXPECT_TRUE(result.out.ends_with("\nBonjour.\n")) << result.out;
      auto json = json_lines(translate_text(line, {"--json", "--split", split}));
      ASSERT_EQ(json.size(), 1u);
      EXPECT_EQ(joined_sources(json[0]), line);
    }
}

TEST(Translate, TakesAnyBytes) {
  const std::vector<std::string> ill_formed = {"\x80",
                                               "\xBF",
                                               "\xC0\x80",
                                               "\xC1\xBF",
                                               "\xC3",
                                               "\xE0\x80\x80",
                                               "\xE2\x82",
                                               "\xED\xA0\x80",
                                               "\xF0\x80\x80\x80",
                                               "\xF0\x9F\x98",
                                               "\xF4\x90\x80\x80",
                                               "\xF5\x80\x80\x80",
                                               "\xF8\x88\x80\x80\x80",
                                               "\xFE",
                                               "\xFF",
                                               "\xE2\x28\xA1"};
  std::string text;
  for (const std::string& bytes : ill_formed) text += "Hello " + bytes + " there.\n";
  text += std::string("Hello\0 there.\n", 14) + std::string("\0\n", 2) + "</s> <pad> <unk>\n";
  size_t lines = count_lines(text);
  EXPECT_EQ(count_lines(translate_text(text).out), lines);
  auto json = json_lines(translate_text(text, {"--json"}));
  ASSERT_EQ(json.size(), lines);
  for (size_t i = 0; i < ill_formed.size(); ++i) {
    EXPECT_NE(json[i]["source"].get<std::string>().find("\uFFFD"), std::string::npos);
    EXPECT_EQ(joined_sources(json[i]), json[i]["source"].get<std::string>());
    EXPECT_NE(json[i]["warnings"].dump().find("U+FFFD"), std::string::npos);
  }
  EXPECT_EQ(json[ill_formed.size()]["source"].get<std::string>(), std::string("Hello\0 there.", 13));
}

TEST(Translate, WarnsOfInvalidBytesWithTheirLine) {
  auto result = run_duet({"translate", "--log-level", "warning"}, {.in = "Hello.\nHi \xFF\xFE.\n"});
  EXPECT_NE(result.err.find("standard input: line 2: 2 invalid UTF-8 sequences replaced by U+FFFD"),
            std::string::npos)
      << result.err;
  auto many = run_duet({"translate", "--log-level", "warning", "--max-target-tokens", "2"},
                       {.in = repeated("\xFF.\n", 100)});
  EXPECT_LT(count_lines(many.err), 30u);
  EXPECT_NE(many.err.find("more warnings"), std::string::npos);
}

TEST(Translate, SurvivesNoise) {
  std::string noise;
  uint32_t state = 1;
  for (int i = 0; i < 8000; ++i) noise += static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  for (const char* split : {"line", "sentence"}) {
    auto result = translate_text(noise, {"--max-target-tokens", "4", "--split", split, "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(json_lines(result).size(), count_lines(noise) + 1);
    for (const auto& line : json_lines(result))
      ASSERT_EQ(joined_sources(line), line["source"].get<std::string>());
  }
}

TEST(Translate, TakesALineOfAMegabyteWithoutSpaces) {
  std::string line = repeated("\u4E2D", 350000);
  auto result = translate_text(line + "\nHello.", {"--max-target-tokens", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(count_lines(result.out), 1u);
  if (kMemoryTells) {
    EXPECT_LT(result.peak_rss_bytes, uint64_t{160} << 20);
  }
  auto blank = translate_text(std::string(1000000, ' ') + "Hello." + std::string(1000000, ' ') + "\n");
  EXPECT_EQ(blank.out, "Bonjour.\n");
}

TEST(Translate, RefusesALineWithoutEndAfterTranslatingTheOnesBefore) {
  auto result = translate_text("Hello.\nHello.\n" + std::string(17 << 20, 'x') + "\nHello.\n");
  EXPECT_TRUE(fails(result, 3, {"standard input: line 3 is longer than 16777216 bytes"}));
  EXPECT_EQ(result.out, "Bonjour.\nBonjour.\n");
  auto zeros = translate({}, {.in_path = "/dev/zero"});
  EXPECT_TRUE(fails(zeros, 3, {"line 1 is longer"}));
  if (kMemoryTells) {
    EXPECT_LT(zeros.peak_rss_bytes, uint64_t{100} << 20);
  }
}

TEST(Translate, NeedsNoMoreMemoryForMoreLines) {
  auto run = [](int lines) {
    std::string text;
    for (int i = 0; i < lines; ++i) text += i % 500 == 0 ? "Hi.\n" : i % 100 == 1 ? "  \n" : "\n";
    auto result = translate_text(text);
    EXPECT_EQ(count_lines(result.out), static_cast<size_t>(lines));
    return result.peak_rss_bytes;
  };
  uint64_t few = run(5000), many = run(100000);
  if (kMemoryTells) {
    EXPECT_LT(many, few + (uint64_t{4} << 20));
  }
}

// Segments.

TEST(Translate, SplitsSentencesAndKeepsTheSpaceBetween) {
  const std::string text = "\tHello.   How are you?\tMr. Smith said: \"Go.\" I am  fine. ";
  auto lines = json_lines(translate_text(text + "\n", {"--json", "--split", "sentence"}));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(joined_sources(lines[0]), text);
  ASSERT_GE(lines[0]["segments"].size(), 4u);
  EXPECT_EQ(lines[0]["segments"][0]["source"].get<std::string>(), "\tHello.   ");
  std::string translation = lines[0]["translation"];
  EXPECT_TRUE(translation.starts_with("\tBonjour.   ")) << translation;
  EXPECT_TRUE(translation.ends_with(" "));
  // Arguments are split, pipes are not.
  EXPECT_EQ(json_lines(translate({"--json", "Hello. Hello."}))[0]["segments"].size(), 2u);
  EXPECT_EQ(json_lines(translate_text("Hello. Hello.", {"--json"}))[0]["segments"].size(), 1u);
  EXPECT_EQ(json_lines(translate({"--json", "--split=line", "Hello. Hello."}))[0]["segments"].size(), 1u);
  EXPECT_EQ(translate({"Hello.  Hello."}).out, "Bonjour.  Bonjour.\n");
}

TEST(Translate, CutsALongSentenceWithAWarningAndDropsNothing) {
  const std::string text = "Hello my friend, how are you today, and how is your mother? I am fine.";
  auto line = json_lines(translate_text(text, {"--json", "--max-source-tokens", "8"})).at(0);
  EXPECT_GT(line["segments"].size(), 2u);
  EXPECT_EQ(joined_sources(line), text);
  EXPECT_NE(line["warnings"].dump().find("more than 8 tokens"), std::string::npos);
  for (const auto& segment : line["segments"]) {
    EXPECT_LE(segment["source_ids"].size(), 8u);
    std::string source = segment["source"];
    EXPECT_TRUE(source.back() == ' ' || source.back() == '.' || source.back() == ',') << source;
  }
  std::string solid(300, 'x');
  EXPECT_EQ(joined_sources(json_lines(translate_text(solid, {"--json", "--max-source-tokens", "8"})).at(0)),
            solid);
}

TEST(Translate, SaysWhenATranslationIsCutAtTheLimit) {
  auto result = run_duet(
      {"translate", "--json", "--log-level", "warning", "--max-target-tokens", "3", "How are you today?"});
  auto line = json_lines(result).at(0);
  EXPECT_TRUE(line["segments"][0]["cut"].get<bool>());
  EXPECT_EQ(line["segments"][0]["target_ids"].size(), 3u);
  EXPECT_NE(line["warnings"].dump().find("limit of 3 tokens"), std::string::npos);
  EXPECT_NE(result.err.find("limit of 3 tokens"), std::string::npos);
}

TEST(Translate, WritesJsonAsDescribed) {
  auto result =
      translate_text("Hello.\r\n\n>>fra<< Hello. Hello.\n>>fra<<\n", {"--json", "--split", "sentence"});
  auto lines = json_lines(result);
  ASSERT_EQ(lines.size(), 4u);
  const std::vector<std::string> sources = {"Hello.\r", "", ">>fra<< Hello. Hello.", ">>fra<<"};
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i].size(), 5u);
    EXPECT_EQ(lines[i]["line"], i + 1);
    EXPECT_EQ(lines[i]["source"].get<std::string>(), sources[i]);
    EXPECT_EQ(joined_sources(lines[i]), sources[i]);
    for (const auto& segment : lines[i]["segments"]) {
      EXPECT_EQ(segment.size(), 7u);
      EXPECT_EQ(segment["token_scores"].size(), segment["target_ids"].size());
    }
  }
  EXPECT_EQ(lines[0]["translation"].get<std::string>(), "Bonjour.\r");
  EXPECT_EQ(lines[1]["translation"].get<std::string>(), "");
  EXPECT_EQ(lines[2]["segments"].size(), 2u);
  EXPECT_NE(lines[2]["warnings"].dump().find("no language token >>fra<<"), std::string::npos);
  EXPECT_EQ(lines[3]["translation"].get<std::string>(), ">>fra<<");  // nothing to translate
}

TEST(Translate, NamesWhatTheModelDoesNotKnow) {
  auto line = json_lines(translate_text("I see \u4E2D\u6587.\n", {"--json"})).at(0);
  EXPECT_NE(line["warnings"].dump().find("\u4E2D"), std::string::npos) << line["warnings"];
  auto huge =
      json_lines(translate_text(repeated("\u4E2D", 2000), {"--json", "--max-target-tokens", "2"})).at(0);
  for (const auto& warning : huge["warnings"]) EXPECT_LT(warning.get<std::string>().size(), 200u);
}

// Results as they come.

TEST(Translate, PrintsALineBeforeTheNextOneComes) {
  RunningCommand command({duet_path(), "translate", "-q"});
  ASSERT_TRUE(command.write("Hello.\n"));
  EXPECT_TRUE(command.wait_for_out("Bonjour.\n", 5));
  double before = command.cpu_seconds();
  command.wait_for_out("nothing more", 1);
  EXPECT_LE(command.cpu_seconds() - before, 0.05) << "waiting costs processor time";
  ASSERT_TRUE(command.write("Hel"));
  EXPECT_FALSE(command.wait_for_out("Bonjour.\nB", 0.2)) << "half a line was translated";
  ASSERT_TRUE(command.write("lo.\n\n"));
  EXPECT_TRUE(command.wait_for_out("Bonjour.\nBonjour.\n\n", 5));
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Bonjour.\nBonjour.\n\n");
}

TEST(Translate, StreamsTheTokensOfEveryStep) {
  auto result = translate_text("Hello World\nThink about it tonight.\n", {"--stream=tokens"});
  EXPECT_EQ(result.out,
            "['<pad> Bonjour','<pad> Pense',]['le','\u00E0',]['monde','\u00E7a',]['.','ce',]['</s>','soir',]"
            "['<pad>','.',]['<pad>','</s>',]\n");
  auto two = translate_text("Hello World\n\nHello World\n", {"--stream=tokens", "--slots", "1"});
  std::string batch = "['<pad> Bonjour',]['le',]['monde',]['.',]['</s>',]\n";
  EXPECT_EQ(two.out, batch + batch);
}

TEST(Translate, StreamedTextEndsAsItIsWithoutStreaming) {
  const std::string text = "Hello. How are you?  I do not know what to say. \r\n\nIt rains\n \nHello \xFF.";
  for (const char* split : {"line", "sentence"})
    for (const char* slots : {"1", "2", "32"}) {
      auto growing = translate_text(text, {"--stream", "--split", split, "--slots", slots});
      EXPECT_EQ(growing.out, translate_text(text, {"--split", split}).out) << split << ' ' << slots;
    }
}

TEST(Translate, StatsNameEveryTimeAndSize) {
  auto result = translate({"--stats", "Hello. How are you?"});
  EXPECT_EQ(result.out, "Bonjour. Comment vas-tu ?\n");
  for (const char* part : {"\ntokenize ", "\nencode ", "\nprefill ", "\ndecode ", "\ntotal ", "1 line,",
                           "tokens/s", "target tokens", "bytes planned", "peak RSS "})
    EXPECT_NE(result.err.find(part), std::string::npos) << part << " in " << result.err;
  EXPECT_TRUE(result.err.starts_with("load ")) << result.err;
  double total = 0, sum = 0;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, unit;
    double value = 0;
    if (!(words >> name >> value >> unit) || unit != "s") continue;
    (name == "total" ? total : sum) += value;
  }
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, total + 0.004) << result.err;
}

// Files.

TEST(Translate, GivesAnOutputFileItsNameOnlyWhenItIsComplete) {
  std::string out = write_file(scratch("out.txt"), "old");
  fs::permissions(out, fs::perms::owner_read | fs::perms::owner_write);
  RunningCommand command({duet_path(), "translate", "-q", "-o", out});
  ASSERT_TRUE(command.write("Hello.\n"));
  for (int i = 0; i < 500 && read_file(out + ".part") != "Bonjour.\n"; ++i) ::usleep(10000);
  EXPECT_EQ(read_file(out + ".part"), "Bonjour.\n");
  EXPECT_EQ(read_file(out), "old");
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(read_file(out), "Bonjour.\n");
  EXPECT_FALSE(fs::exists(out + ".part"));
  EXPECT_EQ(fs::status(out).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(Translate, MayReplaceItsInputAndFollowsLinks) {
  std::string file = write_file(scratch("text.txt"), "Hello.\n");
  EXPECT_EQ(translate({"-i", file, "-o", file}).exit_code, 0);
  EXPECT_EQ(read_file(file), "Bonjour.\n");
  std::string link = scratch("link.txt");
  fs::create_symlink(file, link);
  EXPECT_EQ(translate({"Hello. Hello.", "-o", link}).exit_code, 0);
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_file(file), "Bonjour. Bonjour.\n");
  std::string part = write_file(file + ".part", "Hello.\n");
  EXPECT_TRUE(fails(translate({"-i", part, "-o", file}), 2, {part}));
  EXPECT_EQ(read_file(part), "Hello.\n");
}

TEST(Translate, WritesToAFifoDirectly) {
  std::string fifo = scratch("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  RunningCommand reader({"cat", fifo});
  EXPECT_EQ(translate({"Hello.", "-o", fifo}).exit_code, 0);
  EXPECT_EQ(reader.finish().out, "Bonjour.\n");
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_FALSE(fs::exists(fifo + ".part"));
}

TEST(Translate, NamesTheFileThatCannotBeReadOrWritten) {
  std::string directory = fs::path(scratch("x")).parent_path().string(), missing = directory + "/none/x";
  EXPECT_TRUE(fails(translate({"-i", missing}), 4, {missing, "No such file"}));
  EXPECT_TRUE(fails(translate({"-i", directory}), 4, {directory, "directory"}));
  EXPECT_TRUE(fails(translate({"Hello.", "-o", missing}), 4, {missing, "does not exist"}));
  EXPECT_TRUE(fails(translate({"Hello.", "-o", directory}), 4, {directory, "is a directory"}));
  EXPECT_TRUE(
      fails(translate({"Hello."}, {.out_path = "/dev/full"}), 4, {"standard output", "No space left"}));
  EXPECT_TRUE(fails(translate({"Hello."}, {.close_out = true}), 4, {"standard output"}));
  EXPECT_TRUE(fails(translate({}, {.close_in = true}), 4, {"standard input"}));
  EXPECT_EQ(translate({"Hello."}, {.close_in = true}).out, "Bonjour.\n");
}

TEST(Translate, KeepsWhatFittedWhenAFileMayNotGrow) {
  std::string out = write_file(scratch("out.txt"), "old");
  auto result =
      translate({"-o", out}, {.in = repeated("\t\n", 10000), .resource_limits = {{RLIMIT_FSIZE, 8192}}});
  EXPECT_TRUE(fails(result, 4, {out + ".part", "too large"}));
  EXPECT_EQ(read_file(out), "old");
  EXPECT_EQ(fs::file_size(out + ".part"), 8192u);
}

TEST(Translate, SaysThatMemoryIsMissing) {
  if (!kMemoryTells) GTEST_SKIP();
  for (rlim_t megabytes : {70, 90})
    EXPECT_TRUE(
        fails(translate({"Hello."}, {.resource_limits = {{RLIMIT_AS, megabytes << 20}}}), 4, {"cannot"}))
        << megabytes;
  auto result = translate({"--slots", "4096", "Hello."}, {.resource_limits = {{RLIMIT_AS, rlim_t{1} << 30}}});
  EXPECT_TRUE(fails(result, 4, {" bytes", "memory"}));
  EXPECT_EQ(result.out, "");
}

// Ends.

TEST(Translate, EndsQuietlyWhenNobodyReadsAnyMore) {
  RunningCommand command({duet_path(), "translate", "-q"});
  ASSERT_TRUE(command.write("Hello.\n"));
  ASSERT_TRUE(command.wait_for_out("Bonjour.\n", 10));
  command.close_out();
  command.write("Hello.\n");
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
}

TEST(Translate, KeepsWholeLinesWhenInterrupted) {
  std::string out = scratch("out.txt");
  RunningCommand command({duet_path(), "translate", "-q", "-o", out});
  ASSERT_TRUE(command.write("Hello.\nHello.\n"));
  for (int i = 0; i < 500 && read_file(out + ".part").size() < 18; ++i) ::usleep(10000);
  command.send_signal(SIGINT);  // while it waits for input
  auto result = command.finish();
  EXPECT_TRUE(fails(result, 130, {"interrupted after 2 lines", out + ".part"}));
  EXPECT_EQ(read_file(out + ".part"), "Bonjour.\nBonjour.\n");
  EXPECT_FALSE(fs::exists(out));
}

TEST(Translate, StopsInTheMiddleOfABatchWhenInterrupted) {
  RunningCommand command({duet_path(), "translate", "-q", "--slots", "2"});
  std::string text = repeated("I do not know what to say about all of this.\n", 1400);
  std::string expected = translate({"--split=line", "I do not know what to say about all of this."}).out;
  ASSERT_TRUE(command.write(text));
  ASSERT_TRUE(command.wait_for_out("\n", 10));
  command.send_signal(SIGINT);
  auto result = command.finish();
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.err, "");
  ASSERT_FALSE(result.out.empty());
  EXPECT_LT(count_lines(result.out), 1400u);
  EXPECT_EQ(result.out, repeated(expected, static_cast<int>(count_lines(result.out))));
}

TEST(Translate, EndsAtOnceAtTheSecondInterrupt) {
  std::string fifo = scratch("fifo");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  int unread = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);  // holds 64 KiB, then writing waits
  RunningCommand command({duet_path(), "translate", "-q", "-o", fifo, "-i",
                          write_file(scratch("in"), std::string(200000, '\n'))});
  command.wait_for_out("nothing", 0.5);
  command.send_signal(SIGINT);
  command.wait_for_out("nothing", 0.2);
  command.send_signal(SIGINT);
  auto result = command.finish();
  EXPECT_EQ(result.signal, SIGINT);
  EXPECT_LT(result.seconds, 10);
  ::close(unread);
}

TEST(Translate, LeavesNothingBehindWhenNothingWasTranslated) {
  std::string out = scratch("out.txt");
  EXPECT_TRUE(fails(translate({"-o", out, "-i", "/proc/self/mem"}), 4, {"/proc/self/mem"}));
  EXPECT_FALSE(fs::exists(out + ".part"));
}

// Terminals.

TEST(Translate, ShowsProgressOnATerminalOnly) {
  std::string text = repeated("I do not know what to say about all of this.\n", 150);
  std::string out = scratch("out.txt"), in = write_file(scratch("in.txt"), text);
  auto shown = run_duet({"translate", "--log-level", "off", "-i", in, "-o", out}, {.terminal_err = true});
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_NE(shown.err.find("tokens/s"), std::string::npos);
  EXPECT_TRUE(shown.err.ends_with("\r\x1b[K")) << "the progress line stays";
  EXPECT_EQ(run_duet({"translate", "--log-level", "off", "-i", in, "-o", out}).err, "");
  EXPECT_EQ(run_duet({"translate", "-q", "-i", in, "-o", out}, {.terminal_err = true}).err, "");
}

TEST(Translate, AsksForTextOnATerminalAndSplitsItIntoSentences) {
  RunningCommand command({duet_path(), "translate", "--log-level", "off"}, {.terminal_in = true});
  ASSERT_TRUE(command.wait_for_err("Ctrl-D", 10));
  ASSERT_TRUE(command.write("Hello.  Hello.\n"));
  EXPECT_TRUE(command.wait_for_out("Bonjour.  Bonjour.\n", 10));
  EXPECT_EQ(command.finish().exit_code, 0);
}

// Mistakes.

TEST(Usage, SuggestsTheNearestCommandOrOption) {
  auto duet = [](std::vector<std::string> arguments) { return run_duet(std::move(arguments)); };
  EXPECT_TRUE(fails(duet({"translat", "hi"}), 2, {"\"translat\"", "\"translate\""}));
  EXPECT_TRUE(fails(duet({"--translate", "hi"}), 2, {"did you mean translate?"}));
  EXPECT_TRUE(fails(duet({"--slots", "3", "translate"}), 2, {"--slots", "duet translate --slots"}));
  EXPECT_TRUE(fails(duet({"translate", "--slot=3", "hi"}), 2, {"--slot,", "--slots"}));
  EXPECT_TRUE(fails(duet({"translate", "hi", "--jsn"}), 2, {"--json"}));
  EXPECT_TRUE(fails(duet({"translate", "-slots", "3"}), 2, {"-slots", "--slots"}));
  EXPECT_TRUE(fails(duet({"translate", "---slots=3", "hi"}), 2, {"--slots"}));
  EXPECT_TRUE(fails(duet({"translate", "\u2014slots=3", "hi"}), 2, {"--slots"}));
  EXPECT_TRUE(fails(duet({"translate", "-x", "hi"}), 2, {"unknown option -x", "behind --"}));
  EXPECT_TRUE(fails(duet({"convert", "a", "--slots", "3"}), 2, {"unknown option --slots"}));
  EXPECT_TRUE(fails(duet({"convert", "a", "b", "-o", "c"}), 2, {"unexpected argument b"}));
  EXPECT_TRUE(
      fails(duet({"translate", "--split=word", "hi"}), 2, {"--split", "\"word\"", "line or sentence"}));
  EXPECT_TRUE(fails(duet({"translate", "--stream=token", "hi"}), 2,
                    {"--stream", "\"token\"", "did you mean tokens?"}));
  EXPECT_TRUE(fails(duet({"translate", "--log-level", "loud", "hi"}), 2, {"\"loud\"", "warning"}));
}

TEST(Usage, ExplainsMissingAndWrongValues) {
  auto translate_error = [](std::vector<std::string> arguments) { return translate(std::move(arguments)); };
  EXPECT_TRUE(fails(translate_error({"--slots"}), 2, {"--slots needs a value"}));
  EXPECT_TRUE(fails(translate_error({"--slots=", "hi"}), 2, {"--slots needs a value"}));
  EXPECT_TRUE(fails(translate_error({"-m=x", "hi"}), 2, {"-m PROGRAM"}));
  EXPECT_TRUE(fails(translate_error({"--json=3", "hi"}), 2, {"--json takes no value"}));
  EXPECT_TRUE(fails(translate_error({"-i", "a", "--input", "b"}), 2, {"--input is given 2 times"}));
  EXPECT_TRUE(fails(translate_error({"-i", "", "hi"}), 2, {"--input", "empty"}));
  EXPECT_TRUE(fails(translate_error({"-m", "", "hi"}), 2, {"--program", "empty"}));
  EXPECT_TRUE(fails(translate_error({"-i", "a", "hi"}), 2, {"both text and -i a"}));
  EXPECT_TRUE(fails(translate_error({"--json", "--stream", "hi"}), 2, {"--json and --stream"}));
  for (const char* number : {"abc", "1.5", "3x", "0x10", " 3"})
    EXPECT_TRUE(fails(translate_error({"--slots", number, "hi"}), 2, {"--slots", number, "whole number"}));
  EXPECT_TRUE(fails(translate_error({"--slots", "99999999999999999999", "hi"}), 2,
                    {"99999999999999999999", "too large"}));
  EXPECT_TRUE(fails(translate_error({"--slots", "0", "hi"}), 2, {"--slots is 0, expected 1 to "}));
  EXPECT_TRUE(fails(translate_error({"--slots", "-3", "hi"}), 2, {"--slots is -3, expected 1 to "}));
  EXPECT_TRUE(fails(translate_error({"--threads", "0", "hi"}), 2, {"--threads is 0, expected 1 to "}));
  EXPECT_TRUE(
      fails(translate_error({"--threads", "100000", "hi"}), 2, {"--threads is 100000, expected 1 to "}));
  EXPECT_TRUE(fails(translate_error({"--max-target-tokens", "100000000", "hi"}), 2,
                    {"--max-target-tokens is 100000000"}));
  EXPECT_TRUE(fails(translate_error({"--max-source-tokens", "1", "hi"}), 2,
                    {"--max-source-tokens is 1, expected 2 or more"}));
  EXPECT_TRUE(fails(translate_error({"--batch-tokens", "10", "hi"}), 2, {"--batch-tokens is 10, expected "}));
  EXPECT_TRUE(fails(translate_error({"--max-source-tokens", "2", ">>fra<< hi"}), 2,
                    {"arguments: line 1", "--max-source-tokens"}));
}

TEST(Usage, TakesAnyTextBehindTwoDashesAndInBrackets) {
  auto lines = json_lines(translate({"--json", "--", "-Hello", "--slots", "--"}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["source"].get<std::string>(), "-Hello");
  EXPECT_EQ(lines[2]["source"].get<std::string>(), "--");
  lines =
      json_lines(translate({"--json", "[a, b]", "[]", "- Hello.", "-", "convert", "{x}", "a=b", "\x02[c]"}));
  ASSERT_EQ(lines.size(), 8u);
  const std::vector<std::string> sources = {"[a, b]",  "[]",  "- Hello.", "-",
                                            "convert", "{x}", "a=b",      "\x02[c]"};
  for (size_t i = 0; i < lines.size(); ++i) EXPECT_EQ(lines[i]["source"].get<std::string>(), sources[i]);
}

TEST(Usage, HintsAtTheFileOfThatName) {
  std::string file = write_file(scratch("notes.txt"), "Hello.\n");
  auto result = run_duet({"translate", "--log-level", "warning", file});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.err.find("duet translate -i " + file), std::string::npos) << result.err;
}

TEST(Usage, HelpOfEveryCommandHasAnExampleAndFitsATerminal) {
  auto top = run_duet({"--help"});
  EXPECT_EQ(top.exit_code, 0);
  EXPECT_EQ(run_duet({"help"}).out, top.out);
  EXPECT_EQ(run_duet({}).err, top.out);
  EXPECT_EQ(run_duet({}).exit_code, 2);
  for (const char* command : {"translate", "convert", "plan", "info", "tokenize", "bench"}) {
    EXPECT_NE(top.out.find(std::string("\n  ") + command), std::string::npos) << command;
    auto help = run_duet({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find(std::string("duet ") + command), std::string::npos) << command;
    EXPECT_NE(help.out.find("Example"), std::string::npos) << command;
    EXPECT_EQ(run_duet({"help", command}).out, help.out);
  }
  std::istringstream lines(run_duet({"translate", "--help"}).out);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 84u) << line;
}

TEST(Program, ThatIsNoneIsNamed) {
  std::string directory = fs::path(scratch("x")).parent_path().string();
  auto with = [](const std::string& program) { return translate({"-m", program, "Hello."}); };
  EXPECT_TRUE(fails(with(directory + "/none.duet"), 4, {"none.duet", "No such file"}));
  EXPECT_TRUE(fails(with(directory), 4, {directory, "directory"}));
  EXPECT_TRUE(fails(with(write_file(directory + "/empty.duet", "")), 3, {"empty.duet", "empty"}));
  EXPECT_TRUE(fails(with(write_file(directory + "/text.duet", repeated("Hello.\n", 1000))), 3,
                    {"text.duet", "not a Duet program"}));
  std::string shipped =
      read_file((fs::path(duet_path()).parent_path() / "../share/duet/tatoeba-en-fr.duet").string());
  ASSERT_GT(shipped.size(), 1000000u);
  for (size_t bytes : {size_t{4}, size_t{30}, size_t{5000}, shipped.size() / 2, shipped.size() - 1})
    EXPECT_TRUE(
        fails(with(write_file(directory + "/short.duet", shipped.substr(0, bytes))), 3, {"short.duet"}))
        << bytes;
}

}  // namespace
}  // namespace duet::runner
