// Duet as a guest in somebody else's process: what it takes over a long time, and what a fork does to it.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "memory/log.h"
#include "runner/multi_entry_point_runner.h"
#include "runner/translator.h"
#include "tests/model/support.h"

namespace duet::runner {
namespace {

const bool kQuiet = (memory::set_log_level(memory::LogLevel::kOff), true);

std::string translated(std::shared_ptr<const model::Program> program) {
  TranslatorOptions options;
  options.session.threads = 2;
  auto translator = Translator::create(std::move(program), options);
  if (!translator) return translator.error().message;
  auto text = translator->translate("Good morning.\nHow are you?");
  return text ? *text : text.error().message;
}

TEST(Process, MayForkBeforeItsFirstSession) {
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  auto program = *model::Program::open(DUET_SHIPPED_PROGRAM);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::string text = translated(program);
    bool written = ::write(pipe[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  ::close(pipe[1]);
  std::string own = translated(program), childs;
  char buffer[4096];
  for (ssize_t n; (n = ::read(pipe[0], buffer, sizeof buffer)) > 0;)
    childs.append(buffer, static_cast<size_t>(n));
  ::close(pipe[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(own, "Bonjour.\nComment vas-tu ?");
  EXPECT_EQ(childs, own);
}

// What a process holds: pages in memory, open files, mappings.
struct Holdings {
  int64_t resident_bytes = 0;
  int64_t files = 0, mappings = 0;

  static Holdings now() {
    Holdings holdings;
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages >> pages;
    holdings.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
      ++holdings.files;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) ++holdings.mappings;
    return holdings;
  }
};

// Runs `work` a tenth of the times to warm up, then all of them. What the process holds goes up and down with
// the stacks of threads; the least of the first and of the second half must be the same.
template <class Work>
void expect_constant(int times, Work work) {
  constexpr int kSamples = 40;
  for (int i = 0; i < times / 10; ++i) work(i);
  Holdings least[2];
  for (int i = 0; i < times && !testing::Test::HasFailure(); ++i) {
    work(i);
    if (i % (times / kSamples) != 0) continue;
    Holdings& half = least[i < times / 2 ? 0 : 1];
    const Holdings now = Holdings::now();
    if (half.files == 0) half = now;
    half.resident_bytes = std::min(half.resident_bytes, now.resident_bytes);
    half.files = std::min(half.files, now.files);
    half.mappings = std::min(half.mappings, now.mappings);
  }
  EXPECT_EQ(least[1].files, least[0].files);
  EXPECT_LE(least[1].mappings, least[0].mappings);
  EXPECT_LT(least[1].resident_bytes - least[0].resident_bytes, 128 << 10);
  std::printf(
      "%d times, least of each half: resident %lld, %lld bytes; files %lld, %lld; mappings %lld, %lld\n",
      times, static_cast<long long>(least[0].resident_bytes), static_cast<long long>(least[1].resident_bytes),
      static_cast<long long>(least[0].files), static_cast<long long>(least[1].files),
      static_cast<long long>(least[0].mappings), static_cast<long long>(least[1].mappings));
}

TEST(Process, HoldsNoMoreAfterAHundredThousandCalls) {
  model::TemporaryDirectory directory;
  model::MultiEntryPointExporter exporter;
  model::build_cache(exporter);
  auto runner = MultiEntryPointRunner::load(model::save_and_open(exporter, directory), {});
  ASSERT_TRUE(runner);
  std::vector<float> values(3 * 20, 1.5f);
  const Tensor block = Tensor::f32({3, 20}, values), wrong = Tensor::f32({60}, values);
  expect_constant(100'000, [&](int i) {
    bool fine = i % 3 != 0;  // every third call is refused
    auto result = runner->execute("set_cache", {{"k", block}, {"v", fine ? block : wrong}});
    EXPECT_EQ(result.has_value(), fine);
  });
}

TEST(Process, HoldsNoMoreAfterAThousandTranslatorsCameAndWent) {
  expect_constant(1'000, [](int i) {
    TranslatorOptions options;
    options.session.limits["slots"] = 4;
    options.session.threads = 1 + i % 2;
    auto translator = Translator::open(DUET_SHIPPED_PROGRAM, options);
    ASSERT_TRUE(translator) << translator.error().message;
    if (i % 50 == 0) {
      EXPECT_EQ(*translator->translate("Hello."), "Bonjour.");
    }
    auto missing = Translator::open("/nowhere/at/all.duet", options);
    EXPECT_FALSE(missing);
  });
}

}  // namespace
}  // namespace duet::runner
