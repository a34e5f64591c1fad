// duet call as a user runs it, on small programs made here and on the one that ships with Duet.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "runner/call_results.h"
#include "tests/model/support.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

using model::DType;
using model::MultiEntryPointExporter;
using model::TemporaryDirectory;
using Words = std::vector<std::string>;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class CallTest : public testing::Test {
 protected:
  CallTest() {
    MultiEntryPointExporter exporter;
    model::build_cache(exporter);
    Status saved = exporter.save(path("cache.duet"));
    EXPECT_TRUE(saved) << (saved ? "" : saved.error().message);
  }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  CommandResult call(Words words) {
    words.insert(words.begin(), "call");
    return run_duet(words);
  }
  CommandResult call_cache(Words words) {
    words.insert(words.begin(), {path("cache.duet"), "-q"});
    return call(words);
  }
  std::string out_of(Words words) {
    auto result = call_cache(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return result.out;
  }
  void expect_error(Words words, int exit_code, const std::vector<std::string>& parts) {
    auto result = call_cache(words);
    EXPECT_EQ(result.exit_code, exit_code) << result.err;
    EXPECT_TRUE(result.err.starts_with("duet: ")) << result.err;
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1) << "not one line: " << result.err;
    for (const std::string& part : parts)
      EXPECT_TRUE(has(result.err, part)) << "no \"" << part << "\" in " << result.err;
  }
  TemporaryDirectory directory_;
};

TEST_F(CallTest, WhatOneMethodWritesTheNextReads) {
  EXPECT_EQ(
      out_of({"set_cache", "k=ones[2,20]", "v=range[2,20]", "get_cache"}),
      "set_cache.0.state.cache.keys: f32 tensor(sizes=[10, 20], [1., 1., 1., ..., 0., 0., 0.])\n"
      "set_cache.0.state.cache.values: f32 tensor(sizes=[10, 20], [0., 1., 2., ..., -1.5, -1.5, -1.5])\n"
      "get_cache.1.k: f32 tensor(sizes=[10, 20], [1., 1., 1., ..., 0., 0., 0.])\n"
      "get_cache.1.v: f32 tensor(sizes=[10, 20], [0., 1., 2., ..., -1.5, -1.5, -1.5])\n");
  EXPECT_EQ(out_of({"version_of"}), "version_of.0.value: i32 tensor(sizes=[3], [3, 1, 4])\n");
}

TEST_F(CallTest, ValuesWithBracketsArriveWhole) {
  std::string row = "[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20.25]]";
  std::string all = out_of({"set_cache", "k=" + row, "v=zeros[1, 20]", "get_cache", "--print", "all"});
  EXPECT_TRUE(has(all, "get_cache.1.k: f32 tensor(sizes=[10, 20], [1., 2., 3., 4., 5., ")) << all;
  EXPECT_TRUE(has(all, " 19., 20.25, 0., ")) << all;
}

TEST_F(CallTest, PrintChoosesHowMuch) {
  EXPECT_EQ(out_of({"get_cache", "--print", "none"}), "");
  std::string all = out_of({"get_cache", "--print", "all"});
  EXPECT_EQ(std::count(all.begin(), all.end(), ','), 2 * (2 + 199));
  EXPECT_FALSE(has(all, "..."));
}

TEST_F(CallTest, InputsNotGivenAreAllListedOrFilled) {
  expect_error({"set_cache"}, 2,
               {"method set_cache: inputs not given: k f32[n, 20], v f32[n, 20]", "--fill"});
  expect_error({"set_cache", "k=ones[1,20]"}, 2, {"not given: v f32[n, 20];"});
  std::string out = out_of({"set_cache", "k=ones[1,20]", "--fill", "range", "get_cache"});
  EXPECT_TRUE(has(out, "get_cache.1.k: f32 tensor(sizes=[10, 20], [1., 1., 1., ..., 0., 0., 0.])")) << out;
  EXPECT_TRUE(has(out, "get_cache.1.v: f32 tensor(sizes=[10, 20], [0., 1., 2., ..., -1.5, -1.5, -1.5])"))
      << out;
  Words random = {"set_cache", "--fill", "rand", "get_cache", "--print", "all"};
  EXPECT_EQ(out_of(random), out_of(random));
  Words seeded = random;
  seeded.insert(seeded.end(), {"--seed", "9"});
  EXPECT_NE(out_of(random), out_of(seeded));
}

TEST_F(CallTest, MistakesAreNamedBeforeAnythingRuns) {
  expect_error({}, 2, {"no method to call", "et_module_init, set_cache, get_cache, version_of"});
  expect_error({"get_cach"}, 2, {"no method \"get_cach\"; did you mean get_cache?", "set_cache"});
  expect_error({"k=ones[1,20]"}, 2, {"stands behind its method"});
  expect_error({"get_cache", "k=1"}, 2, {"method get_cache has no input k; it has none"});
  expect_error({"set_cache", "kk=1", "v=1"}, 2, {"has no input kk; did you mean k?"});
  expect_error({"set_cache", "k=ones[1,20]", "k=ones[1,20]"}, 2, {"input k is given twice"});
  expect_error({"set_cache", "k=ones[n,20]", "v=1"}, 2,
               {"method set_cache: k=ones[n,20]: dimension \"n\" is no number"});
  expect_error({"set_cache", "k=ones[1,20]", "v=ones[2,20]"}, 2, {"input v has shape [2, 20]: n is 1 here"});
  expect_error({"get_cache", "set_cache", "k=ones[0,20]", "v=ones[0,20]"}, 2,
               {"call 1: method set_cache: ", "n is 0"});
  expect_error({"get_cache", "--limit", "slots=4"}, 2, {"--limit: unknown limit slots"});
  expect_error({"get_cache", "--limit", "slots"}, 2, {"--limit slots: expected NAME=N"});
  expect_error({"get_cache", "--limit", "slots=4x"}, 2, {"expected NAME=N"});
  expect_error({"get_cache", "--limit", "a=1", "--limit", "b=2", "--speed"}, 2, {"unknown option --speed"});
  expect_error({"get_cache", "--limit", "a=1", "--limit", "b=2", "--seed", "x"}, 2, {"--seed"});
  expect_error({"get_cache", "--threads", "0"}, 2, {"--threads is 0"});
  expect_error({"get_cache", "--print", "some"}, 2, {"none, abridged or all"});
  auto nothing = call({});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(has(nothing.err, "expected PROGRAM METHOD")) << nothing.err;
}

TEST_F(CallTest, FilesThatAreMissingOrWrongHaveTheirExitCodes) {
  expect_error({"set_cache", "k=" + path("none.npy"), "v=ones[1,20]"}, 4, {"none.npy", "No such file"});
  std::string bad = directory_.write("bad.npy", "no array at all");
  expect_error({"set_cache", "k=" + bad, "v=ones[1,20]"}, 3, {"bad.npy: is no .npy file"});
  auto result = call({path("none.duet"), "m"});
  EXPECT_EQ(result.exit_code, 4) << result.err;
  expect_error({"get_cache", "--load-state", bad}, 3, {"bad.npy: is no state file"});
  expect_error({"get_cache", "--save-state", path("no/state")}, 4, {"does not exist"});
}

TEST_F(CallTest, OutputsAndWrittenStateBecomeFilesThatAreInputsAgain) {
  out_of({"set_cache", "k=rand[10,20]@3", "v=ones[10,20]", "get_cache", "--out", path("out/deep"), "--print",
          "none"});
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path("out/deep")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (Words{"get_cache.1.k.npy", "get_cache.1.v.npy", "set_cache.0.state.cache.keys.npy",
                          "set_cache.0.state.cache.values.npy"}));
  std::string k = path("out/deep/get_cache.1.k.npy");
  out_of({"set_cache", "k=" + k, "v=" + k, "get_cache", "--out", path("bin"), "--format", "bin"});
  EXPECT_EQ(read_bytes(path("bin/get_cache.1.v.bin")).size(), 800u);
  std::string raw = path("bin/get_cache.1.v.bin") + ":f32[10,20]";
  out_of({"set_cache", "k=" + raw, "v=" + raw, "get_cache", "--out", path("again")});
  EXPECT_EQ(read_bytes(path("again/get_cache.1.v.npy")), read_bytes(k));
  expect_error({"get_cache", "--out", path("cache.duet")}, 4, {"cache.duet"});
}

TEST_F(CallTest, NoNameInAProgramLeavesTheDirectoryOrCommandsTheTerminal) {
  MultiEntryPointExporter exporter;
  exporter.constant("c", std::vector<int32_t>{5}, {1});
  const Words hostile = {"../../escaped",       "/etc/passwd", "..", "a\x1b[2J",
                         std::string(300, 'x'), "a/b",         "a_b"};
  auto& method = exporter.method("../m");
  for (const std::string& name : hostile) method.output(name, "c");
  Status saved = exporter.save(path("hostile.duet"));
  ASSERT_TRUE(saved) << saved.error().message;
  auto result = call({path("hostile.duet"), "../m", "-q", "--out", path("in/out")});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("in/out")))
    files += entry.is_regular_file() && entry.path().filename().string()[0] != '.';
  EXPECT_EQ(files, hostile.size());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path("in")), {}), 1);
  EXPECT_EQ(file_name_part("../../x"), "_._.._x");
  EXPECT_TRUE(std::filesystem::exists(path("in/out/_._m.0.a_b~2.npy")));
}

TEST_F(CallTest, KeptStateContinuesInAnotherProcess) {
  out_of({"set_cache", "k=range[3,20]", "v=ones[3,20]", "--save-state", path("s.state"), "--print", "none"});
  std::string restored = out_of({"get_cache", "--load-state", path("s.state"), "--print", "all"});
  EXPECT_EQ(restored.substr(0, restored.find('\n'))
                .find("get_cache.0.k: f32 tensor(sizes=[10, 20], [0., 1., 2., 3., "),
            0u);
  EXPECT_NE(restored, out_of({"get_cache", "--print", "all"}));
}

TEST_F(CallTest, StateIsListedAfterEachCall) {
  std::string out = out_of(
      {"get_cache", "set_cache", "k=ones[1,20]", "v=ones[1,20]", "get_cache", "--print", "none", "--state"});
  std::vector<std::string> keys;
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);)
    if (has(line, "cache.keys")) keys.push_back(line);
  ASSERT_EQ(keys.size(), 3u) << out;
  EXPECT_TRUE(has(keys[0], "f32    [10, 20]")) << keys[0];
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_EQ(keys[1], keys[2]);
  EXPECT_TRUE(has(out, "state after set_cache.1: 1664 bytes")) << out;
}

TEST_F(CallTest, RepeatedCallsAreTimedAndPrintedOnce) {
  auto result = call_cache({"set_cache", "--fill", "ones", "get_cache", "--repeat", "7", "--time"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 4);
  EXPECT_TRUE(has(result.err, "median ms")) << result.err;
  EXPECT_TRUE(has(result.err, "set_cache.0     7")) << result.err;
  EXPECT_TRUE(has(result.err, "get_cache.1     7")) << result.err;
  expect_error({"get_cache", "--repeat", "0"}, 2, {"--repeat"});
}

TEST_F(CallTest, ResultsBeforeAnErrorAreNotLost) {
  auto result = call_cache({"version_of", "set_cache", "k=ones[0,20]", "v=ones[0,20]"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_TRUE(has(result.out, "version_of.0.value")) << result.out;
}

TEST_F(CallTest, ThePlanIsLoggedAndTheProgramMayBeAnOption) {
  auto result = call({"version_of", "-m", path("cache.duet"), "--threads", "1"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(has(result.err, "Allocated shared buffer")) << result.err;
  EXPECT_TRUE(has(result.out, "version_of.0.value")) << result.out;
}

TEST_F(CallTest, AProgramOfATranslationModelRunsStepByStep) {
  std::string program =
      (std::filesystem::path(duet_path()).parent_path().parent_path() / "share/duet/tatoeba-en-fr.duet")
          .string();
  Words prefill = {"reset_encode_prefill",  "source_tokens=[7,9,0]", "source_lengths=[3]", "slots=[1]",
                   "prompt_tokens=[11223]", "prompt_lengths=[1]",    "target_limits=[40]"};
  Words common = {program,   "-q",
                  "--limit", "slots=2",
                  "--limit", "max_source_tokens=32",
                  "--limit", "max_target_tokens=40"};
  auto with = [&](std::initializer_list<Words> parts) {
    Words words = common;
    for (const Words& part : parts) words.insert(words.end(), part.begin(), part.end());
    auto result = call(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  auto line = [](const std::string& out, const std::string& name) {
    size_t at = out.find(name + ": ");
    EXPECT_NE(at, std::string::npos) << name << " in " << out;
    return at == std::string::npos ? "" : out.substr(at + name.size(), out.find('\n', at) - at - name.size());
  };
  Words step = {"decode", "slots=[1]"};
  std::string at_once = with({prefill, step, step});
  with({prefill, step, {"--save-state", path("begun.state"), "--print", "none"}});
  std::string later = with({step, {"--load-state", path("begun.state")}});
  for (const char* name : {"tokens", "scores"})
    EXPECT_EQ(line(at_once, std::string("decode.2.") + name), line(later, std::string("decode.0.") + name));
  Words other = {program,  "-q",        "--limit",      "slots=3",
                 "decode", "slots=[1]", "--load-state", path("begun.state")};
  auto refused = call(other);
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_TRUE(has(refused.err, "limit slots is 2 in the file and 3 in this session")) << refused.err;
}

TEST_F(CallTest, WritesFilesAndStateThoughNobodyReadsTheLines) {
  const std::string command = shell_quote(duet_path()) + " call -q " + shell_quote(path("cache.duet")) +
                              " set_cache k=ones[10,20] v=ones[10,20] get_cache set_cache k=zeros[10,20] "
                              "v=zeros[10,20] get_cache --print all"
                              " --out " +
                              shell_quote(path("out")) + " --save-state " + shell_quote(path("kept.state")) +
                              " | true";
  auto result = run_command({"bash", "-o", "pipefail", "-c", command});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(std::filesystem::exists(path("kept.state")));
  EXPECT_TRUE(std::filesystem::exists(path("out/get_cache.3.v.npy")));
}

TEST_F(CallTest, EndsWellWhenStandardErrorTakesNoTimes) {
  auto result = run_command({"sh", "-c",
                             shell_quote(duet_path()) + " call -q " + shell_quote(path("cache.duet")) +
                                 " get_cache --time 2>/dev/full"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(has(result.out, "get_cache.0.k: f32 tensor")) << result.out;
}

TEST_F(CallTest, RefusesSeedsThatAreNoNumbersAndItsOwnProgramAsAStateFile) {
  expect_error({"get_cache", "--seed", "-1"}, 2, {"--seed", "\"-1\"", "18446744073709551615"});
  expect_error({"get_cache", "--seed", "18446744073709551616"}, 2, {"--seed"});
  expect_error({"get_cache", "--save-state", path("cache.duet")}, 2, {"is the program itself"});
  EXPECT_NE(out_of({"get_cache"}), "") << "the program is still there";
}

}  // namespace
}  // namespace duet::runner
