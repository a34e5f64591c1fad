// A program's file in use: how it is held, what happens when it shrinks or when two write it, and that
// waiting costs nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/runner/golden.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Sanitizers take SIGBUS for themselves, memory for shadows, and time.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class Loading : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = golden::scratch_directory() / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::create_directories(directory_);
    model_ = directory_ / "model";
    fs::copy(fs::path(DUET_TEST_DATA) / "../golden/small-a/model", model_);
    program_ = directory_ / "model.duet";
    auto made = run_duet({"convert", "-q", model_.string(), "-o", program_.string()});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  std::string expected(const std::string& text) {
    auto result = run_duet({"translate", "-q", "-m", program_.string()}, {.in = text});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }
  static void expect_one_line(const CommandResult& result, int code,
                              std::initializer_list<std::string> parts) {
    EXPECT_EQ(result.exit_code, code) << "signal " << result.signal << ": " << result.err;
    EXPECT_TRUE(result.err.starts_with("duet: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    for (const std::string& part : parts)
      EXPECT_NE(result.err.find(part), std::string::npos) << part << " in " << result.err;
  }
  fs::path directory_, model_, program_;
};

TEST_F(Loading, InAnyWayGivesTheSameTranslations) {
  std::string text = "hello\nhow are you\n";
  fs::path input = directory_ / "text";
  std::ofstream(input) << "hello\n";
  for (const char* how : {"mmap", "mlock", "read"}) {
    auto result = run_duet({"translate", "-q", "-m", program_.string(), "--load", how}, {.in = text});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, expected(text)) << how;
    auto bench = run_duet({"bench", program_.string(), "--load", how, "--slots", "1", "--repeat", "1",
                           "--seconds", "0", "--json", "-i", input.string()});
    EXPECT_EQ(bench.exit_code, 0) << bench.err;
  }
  expect_one_line(run_duet({"translate", "--load", "copy", "hello"}), 2, {"--load", "mmap, mlock or read"});
}

TEST_F(Loading, ByMlockWithoutTheRightSaysWhatToDo) {
  // Root may lock what it likes: as nobody, then.
  std::vector<std::string> command = {duet_path(), "translate",       "-q",   "--load", "mlock",
                                      "-m",        program_.string(), "hello"};
  if (::getuid() == 0) {
    if (run_command({"setpriv", "--version"}).exit_code != 0) GTEST_SKIP() << "no setpriv";
    command.insert(command.begin(), {"setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"});
  }
  auto result = run_command(command, {.resource_limits = {{RLIMIT_MEMLOCK, 65536}}});
  expect_one_line(
      result, 4,
      {program_.string() + ": cannot lock its " + std::to_string(fs::file_size(program_)) + " bytes",
       "65536 bytes", "ulimit -l"});
}

TEST_F(Loading, ThatShrinksEndsWithAnErrorAndKeepsWhatWasTranslated) {
  if (kSanitized) GTEST_SKIP();
  std::string first = expected("hello\n");
  auto bytes = fs::file_size(program_);
  for (auto left : {bytes / 2, uintmax_t{4096}, uintmax_t{0}, bytes - 1}) {
    SCOPED_TRACE(left);
    fs::path copy = directory_ / "copy.duet", out = directory_ / "out.txt";
    fs::copy_file(program_, copy, fs::copy_options::overwrite_existing);
    fs::remove(out.string() + ".part");
    RunningCommand command({duet_path(), "translate", "-q", "-m", copy.string(), "-o", out.string(), "--load",
                            left ? "mmap" : "mlock"});
    ASSERT_TRUE(command.write("hello\n"));
    for (int i = 0; i < 1000 && read(out.string() + ".part") != first; ++i) ::usleep(10000);
    fs::resize_file(copy, left);
    ASSERT_TRUE(command.write("how are you\n"));
    auto result = command.finish();
    expect_one_line(result, 4,
                    {copy.string() + ": shrank from " + std::to_string(bytes) + " to " + std::to_string(left),
                     "results cannot be trusted", "renaming", out.string() + ".part"});
    EXPECT_EQ(read(out.string() + ".part"), first);
    EXPECT_FALSE(fs::exists(out));
  }
}

TEST_F(Loading, ByCopyOrReplacedByRenamingGoesOn) {
  std::string first = expected("hello\n");
  fs::path copy = directory_ / "copy.duet";
  for (const char* how : {"read", "mmap"}) {
    fs::copy_file(program_, copy, fs::copy_options::overwrite_existing);
    RunningCommand command({duet_path(), "translate", "-q", "-m", copy.string(), "--load", how});
    ASSERT_TRUE(command.write("hello\n"));
    ASSERT_TRUE(command.wait_for_out(first, 30));
    if (std::string(how) == "read") {
      fs::resize_file(copy, 0);
    } else {
      std::ofstream(directory_ / "new") << "something else";
      fs::rename(directory_ / "new", copy);
    }
    ASSERT_TRUE(command.write("hello\n"));
    auto result = command.finish();
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, first + first);
  }
}

// The importer has mapped the weights when it waits for the tokenizer's file, which is a FIFO here.
TEST_F(Loading, OfWeightsThatShrinkWhileTheyAreConvertedWritesNothing) {
  if (kSanitized) GTEST_SKIP();
  std::string spm = read(model_ / "source.spm"), old = read(program_);
  fs::remove(model_ / "source.spm");
  ASSERT_EQ(::mkfifo((model_ / "source.spm").c_str(), 0600), 0);
  int fifo = ::open((model_ / "source.spm").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(fifo, 0);
  RunningCommand command({duet_path(), "convert", "-q", model_.string(), "-o", program_.string()});
  auto waits = [&] {  // before it becomes duet, the child has our FIFO open, but not the weights
    std::error_code gone;
    int found = 0;
    for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", command.pid()), gone))
      for (const char* name : {"model.safetensors", "source.spm"})
        found += fs::read_symlink(entry, gone) == fs::canonical(model_ / name);
    return found == 2;
  };
  for (int i = 0; i < 1500 && !waits(); ++i) ::usleep(10000);
  ASSERT_TRUE(waits()) << command.finish().err;
  fs::path weights = model_ / "model.safetensors";
  auto bytes = fs::file_size(weights);
  fs::resize_file(weights, 8192);
  size_t at = 0;
  for (int i = 0; i < 3000 && at < spm.size(); ++i) {
    ssize_t n = ::write(fifo, spm.data() + at, spm.size() - at);
    if (n > 0) at += static_cast<size_t>(n);
    if (n < 0) ::usleep(10000);  // it is full
  }
  ::close(fifo);
  auto result = command.finish();
  expect_one_line(result, 4,
                  {weights.string() + ": shrank from " + std::to_string(bytes) + " to 8192 bytes"});
  EXPECT_EQ(read(program_), old);
  EXPECT_FALSE(fs::exists(program_.string() + ".part"));
}

TEST_F(Loading, FindsNoHalfProgramWhereConvertWasKilled) {
  std::string old = read(program_);
  fs::path target = directory_ / "killed.duet";
  int killed = 0;
  for (int i = 0; i < 12; ++i) {
    RunningCommand command({duet_path(), "convert", "-q", model_.string(), "-o", target.string()});
    ::usleep(static_cast<useconds_t>(1000 + i * 4000));
    command.send_signal(SIGKILL);
    killed += command.finish().signal == SIGKILL;
    EXPECT_TRUE(!fs::exists(target) || read(target) == old);
    fs::remove(target);
  }
  EXPECT_GT(killed, 0);
  auto again = run_duet({"convert", "-q", model_.string(), "-o", target.string()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(read(target) == old);
  EXPECT_FALSE(fs::exists(target.string() + ".part"));
}

TEST_F(Loading, WritesOneOutputForOneRunOnly) {
  std::string first = expected("hello\n");
  fs::path out = directory_ / "out.txt";
  RunningCommand one({duet_path(), "translate", "-q", "-m", program_.string(), "-o", out.string()});
  ASSERT_TRUE(one.write("hello\n"));
  for (int i = 0; i < 1000 && read(out.string() + ".part") != first; ++i) ::usleep(10000);
  auto other = run_duet({"translate", "-q", "-m", program_.string(), "-o", out.string(), "hello"});
  expect_one_line(other, 4, {out.string() + ".part: another process is writing it"});
  auto convert = run_duet({"convert", "-q", model_.string(), "-o", out.string()});
  expect_one_line(convert, 4, {out.string() + ".part: another process is writing it"});
  EXPECT_EQ(one.finish().exit_code, 0);
  EXPECT_EQ(read(out), first);
}

TEST_F(Loading, VerifiesEveryByte) {
  auto fine = run_duet({"verify", "--checksums", program_.string()});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
  EXPECT_NE(fine.out.find("constants"), std::string::npos) << fine.out;
  EXPECT_TRUE(fine.out.ends_with("all as they were written\n")) << fine.out;
  std::fstream file(program_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-9, std::ios::end).put('\x55').flush();
  auto damaged = run_duet({"verify", program_.string()});
  expect_one_line(damaged, 3,
                  {program_.string() + ": constant \"", "is damaged: its checksum is", "expected"});
  EXPECT_EQ(damaged.out, "");
}

TEST_F(Loading, CostsNothingWhileItWaitsForInput) {
  constexpr double kPause = 3, kMostShare = 0.05;  // of a processor: 0.5 s in 10 s
  RunningCommand command({duet_path(), "translate", "-q", "-m", program_.string()});
  ASSERT_TRUE(command.write("hello\n"));
  ASSERT_TRUE(command.wait_for_out("\n", 30));
  double before = command.cpu_seconds();
  command.wait_for_out("nothing", kPause);
  EXPECT_LT(command.cpu_seconds() - before, kPause * kMostShare);
  EXPECT_EQ(command.finish().exit_code, 0);
}

}  // namespace
}  // namespace duet::runner
