// duet convert: a model directory becomes a program, or one line says why not.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "model/program.h"
#include "tests/runner/golden.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Convert : public testing::Test {
 protected:
  Convert() {
    directory_ = golden::scratch_directory() / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(directory_);
    model_ = directory_ / "model";
    fs::copy(fs::path(DUET_TEST_DATA) / "../golden/small-a/model", model_);
    program_ = directory_ / "model.duet";
  }
  CommandResult convert(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "convert");
    return run_duet(std::move(arguments));
  }
  // Converting the model fails with this code and one line with these parts, and leaves no file.
  void expect_failure(int code, std::initializer_list<std::string_view> parts) {
    auto result = convert({model_.string(), "-o", program_.string()});
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (std::string_view part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " in " << result.err;
    EXPECT_FALSE(fs::exists(program_));
    EXPECT_FALSE(fs::exists(program_.string() + ".part"));
  }
  fs::path directory_, model_, program_;
};

TEST_F(Convert, MakesTheSameProgramEachTime) {
  auto result = convert({model_.string(), "-o", program_.string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_NE(result.err.find(" parameters, "), std::string::npos) << result.err;
  std::string first = read(program_);
  EXPECT_TRUE(first.starts_with("DUET"));
  auto quiet = convert({model_.string(), "-q", "-o", program_.string()});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.err, "");
  EXPECT_TRUE(read(program_) == first);
  auto translated = run_duet({"translate", "-q", "-m", program_.string(), "hello"});
  EXPECT_EQ(translated.exit_code, 0) << translated.err;
  EXPECT_EQ(std::count(translated.out.begin(), translated.out.end(), '\n'), 1);
}

TEST_F(Convert, TakesNameAndLicenceFromTheModelOrItsOptions) {
  std::ofstream(model_ / "README.md") << "---\nlanguage: en\nlicense: \"cc-by-4.0\"\n---\nlicense: none\n";
  ASSERT_EQ(convert({model_.string() + "/", "-o", program_.string()}).exit_code, 0);
  auto program = model::Program::open(program_.string());
  ASSERT_TRUE(program);
  EXPECT_EQ((*program)->definition().metadata["name"], "model");
  EXPECT_EQ((*program)->definition().metadata["licence"], "cc-by-4.0");
  ASSERT_EQ(
      convert({model_.string(), "-o", program_.string(), "--name", "n", "--licence", "[own]"}).exit_code, 0);
  program = model::Program::open(program_.string());
  ASSERT_TRUE(program);
  EXPECT_EQ((*program)->definition().metadata["name"], "n");
  EXPECT_EQ((*program)->definition().metadata["licence"], "[own]");
}

TEST_F(Convert, ReportsWhatItRead) {
  fs::path report = directory_ / "deep" / "report";
  auto result = convert({model_.string(), "-o", program_.string(), "--report", report.string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  auto json = nlohmann::json::parse(read(report / "convert.json"));
  EXPECT_EQ(json["program_bytes"], fs::file_size(program_));
  EXPECT_GT(json["parameters"], 0);
  EXPECT_GT(json["constants"].size(), 10u);
  auto refused = convert({model_.string(), "-o", program_.string(), "--report", program_.string()});
  EXPECT_EQ(refused.exit_code, 4);
  EXPECT_NE(refused.err.find(program_.string()), std::string::npos) << refused.err;
}

TEST_F(Convert, NamesTheFileThatIsMissing) {
  for (const char* name : {"config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json"}) {
    SCOPED_TRACE(name);
    fs::rename(model_ / name, model_ / "hidden");
    expect_failure(4, {name, "o such file"});
    fs::rename(model_ / "hidden", model_ / name);
  }
}

TEST_F(Convert, NamesTheFileThatIsDamaged) {
  for (const char* name : {"config.json", "model.safetensors", "source.spm", "target.spm", "vocab.json"}) {
    SCOPED_TRACE(name);
    std::string whole = read(model_ / name);
    std::ofstream(model_ / name, std::ios::binary) << whole.substr(0, whole.size() / 2);
    expect_failure(3, {name});
    std::ofstream(model_ / name, std::ios::binary) << "";
    expect_failure(3, {name});
    std::ofstream(model_ / name, std::ios::binary) << whole;
  }
}

TEST_F(Convert, RefusesWhatIsNoModelDirectoryOrNoPlaceForAFile) {
  auto error = [&](const std::string& from, const std::string& to) { return convert({from, "-o", to}); };
  auto none = error((directory_ / "none").string(), program_.string());
  EXPECT_EQ(none.exit_code, 4);
  EXPECT_NE(none.err.find("no such directory"), std::string::npos) << none.err;
  auto file = error((model_ / "config.json").string(), program_.string());
  EXPECT_EQ(file.exit_code, 3);
  EXPECT_NE(file.err.find("is no directory"), std::string::npos) << file.err;
  auto nowhere = error(model_.string(), (directory_ / "none" / "x.duet").string());
  EXPECT_EQ(nowhere.exit_code, 4);
  EXPECT_NE(nowhere.err.find("does not exist"), std::string::npos) << nowhere.err;
  EXPECT_EQ(error(model_.string(), directory_.string()).exit_code, 4);
  // As root a rename would replace even a device.
  fs::path fifo = directory_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(error(model_.string(), fifo.string()).exit_code, 4);
  EXPECT_TRUE(fs::is_fifo(fifo));
  EXPECT_FALSE(fs::exists(fifo.string() + ".part"));
}

TEST_F(Convert, ReadsTheGoldenModelsFromPyTorchFilesAndTranslatesAsTheReferenceDoes) {
  struct Twin {
    const char *model, *file;
  };
  for (const Twin& twin : {Twin{"small-a", "small-a-zip-tied-copies.bin"}, Twin{"small-b", "small-b-zip.bin"},
                           Twin{"small-c", "small-c-legacy.bin"}}) {
    SCOPED_TRACE(twin.file);
    const fs::path from = directory_ / twin.model, program = directory_ / (std::string(twin.model) + ".duet");
    fs::copy(fs::path(DUET_TEST_DATA) / "../golden" / twin.model / "model", from);
    fs::remove(from / "model.safetensors");
    fs::copy(fs::path(DUET_TEST_DATA) / "../golden/formats" / twin.file, from / "pytorch_model.bin");
    auto converted = convert({from.string(), "-q", "-o", program.string()});
    ASSERT_EQ(converted.exit_code, 0) << converted.err;
    std::string in;
    auto sentences = golden::sentences(twin.model);
    for (const golden::Sentence& sentence : sentences) in += sentence.source + "\n";
    const std::string limit = std::to_string(golden::target_limit(twin.model));
    auto result = run_duet(
        {"translate", "-q", "--json", "--max-target-tokens", limit, "-m", program.string()}, {.in = in});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    std::istringstream lines(result.out);
    for (const golden::Sentence& sentence : sentences) {
      std::string line;
      ASSERT_TRUE(std::getline(lines, line));
      auto segment = nlohmann::json::parse(line)["segments"][0];
      EXPECT_EQ(segment["target_ids"].get<std::vector<int32_t>>(), sentence.target_ids) << sentence.source;
    }
  }
}

}  // namespace
}  // namespace duet::runner
