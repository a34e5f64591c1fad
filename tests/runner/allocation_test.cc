// What is allocated: nothing while decoding; and loading gives a clean error whichever of its allocations
// fails. The whole process counts: this file replaces malloc (not under sanitizers, which do so themselves)
// and operator new.
#include <dirent.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <new>

#include "model/exporter.h"
#include "runner/multi_entry_point_runner.h"
#include "tests/runner/decoding.h"

namespace {

std::atomic<int64_t> g_allocations{0};     // of the process, every kind
std::atomic<int64_t> g_live{0};            // by operator new, not yet deleted
thread_local int64_t t_until_failure = 0;  // operator new fails when this goes from 1 to 0; 0: never

void* allocate(size_t bytes, size_t alignment) {
  if (t_until_failure > 0 && --t_until_failure == 0) throw std::bad_alloc();
  ++g_allocations;
  void* memory = alignment ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                           : std::malloc(bytes ? bytes : 1);
  if (!memory) throw std::bad_alloc();
  ++g_live;
  return memory;
}

void release(void* memory) {
  if (!memory) return;
  --g_live;
  std::free(memory);
}

}  // namespace

// The forms that are not here end in these.
void* operator new(size_t bytes) { return allocate(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<size_t>(alignment));
}
// Who asks this way goes on without (std::stable_sort): it takes no part in failing.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  int64_t until_failure = std::exchange(t_until_failure, 0);
  void* memory = allocate(bytes, 0);
  t_until_failure = until_failure;
  return memory;
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { release(memory); }

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  ++g_allocations;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++g_allocations;
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  ++g_allocations;
  return __libc_realloc(memory, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++g_allocations;
  return __libc_memalign(alignment, bytes);
}
}
#endif

namespace duet::runner {
namespace {

TEST(AllocationCounterTest, CountsWhatIsAllocated) {
  int64_t before = g_allocations;
  delete new int(1);
  EXPECT_GT(g_allocations, before);
  before = g_allocations;
  void* volatile memory = std::malloc(100);
  std::free(memory);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_GT(g_allocations, before);
#endif
}

class DecodeAllocationTest : public testing::TestWithParam<std::string> {};

TEST_P(DecodeAllocationTest, DecodingAllocatesNothing) {
  auto sentences = golden::sentences(GetParam());
  std::vector<int32_t> longest;
  for (size_t i = 0, most = 0; i < sentences.size(); ++i)
    if (sentences[i].target_ids.size() > most)
      most = sentences[i].target_ids.size(), longest = sentences[i].source_ids;
  for (int threads : {1, 2}) {
    auto runner = make_runner(GetParam(), {{"slots", 6}}, threads);
    std::vector<EncoderDecoderRunner::Row> rows;
    std::vector<int32_t> running;
    for (int32_t slot = 0; slot < 6;
         ++slot) {  // finished after 2, 11, … steps; blocks are crossed at 16 and 32
      const auto& source = slot % 2 ? longest : sentences[static_cast<size_t>(slot * 9)].source_ids;
      rows.push_back({slot, source, {}, 2 + 9 * slot});
      running.push_back(slot);
    }
    size_t steps = 0;
    for (int round = 0; round < 2; ++round) {
      auto now = running;
      ASSERT_TRUE(runner.prefill(rows));
      while (!now.empty()) {
        int64_t before = g_allocations;
        auto choices = runner.decode(now);
        int64_t after = g_allocations;
        ASSERT_TRUE(choices) << choices.error().message;
        EXPECT_EQ(after - before, 0) << "step " << steps << ", " << now.size() << " slots, " << threads
                                     << " threads";
        ++steps;
        std::vector<int32_t> left;
        for (size_t i = 0; i < now.size(); ++i)
          if (!(*choices)[i].finished) left.push_back(now[i]);
        now = left;
      }
    }
    EXPECT_GT(steps, 60u);
  }
}

// The inputs of a prefill wait in memory that was taken when the runner was made.
TEST_P(DecodeAllocationTest, PrefillAllocatesNothing) {
  auto sentences = golden::sentences(GetParam());
  auto runner = make_runner(GetParam(), {{"slots", 6}}, 2);
  for (size_t first : {0u, 40u}) {
    std::vector<EncoderDecoderRunner::Row> rows;
    std::vector<int32_t> prefix = {5, 6, 7};
    for (int32_t slot = 0; slot < 6; ++slot)
      rows.push_back({slot, sentences[first + static_cast<size_t>(slot)].source_ids, prefix, 20});
    int64_t before = g_allocations;
    auto choices = runner.prefill(rows);
    int64_t after = g_allocations;
    ASSERT_TRUE(choices) << choices.error().message;
    EXPECT_EQ(after - before, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DecodeAllocationTest, testing::ValuesIn(golden::kModels), test_name);

size_t entries(const char* directory) {
  size_t n = 0;
  DIR* opened = ::opendir(directory);
  while (::readdir(opened)) ++n;
  ::closedir(opened);
  return n;
}

// What the process holds besides memory of operator new.
struct Held {
  size_t descriptors = 0, mapped_programs = 0, threads = 0;
  bool operator==(const Held&) const = default;
};
Held held() {
  Held now{entries("/proc/self/fd"), 0, entries("/proc/self/task")};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) now.mapped_programs += line.ends_with(".duet");
  return now;
}
size_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages;
  return pages * 4096;
}

enum Outcome { kClean = 0, kNoAllocation = 10, kProblem = 11, kTerminated = 12 };

// In the destructor of a value, nlohmann::json 3.11 allocates; when that fails, std::terminate ends the
// process, and nobody outside of that library can prevent it. Such ends are counted apart, and their number
// is bounded.
[[noreturn]] void on_terminate() { ::_exit(kTerminated); }

// Runs `make` with allocation k failing and looks at what comes of it.
template <class Make>
Outcome outcome_of_failure(const Make& make, int64_t k) {
  const Held held_before = held();
  const int64_t live_before = g_live;
  bool fired = false, clean = true;
  auto problem = [&](const std::string& what) {
    std::fprintf(stderr, "allocation %lld fails: %s\n", static_cast<long long>(k), what.c_str());
    clean = false;
  };
  try {
    t_until_failure = k;
    auto result = make();
    fired = std::exchange(t_until_failure, 0) == 0;
    if (fired && result) problem("success all the same");
    if (!fired && !result) problem("never reached, but an error: " + result.error().message);
    if (!result && result.error().code != ErrorCode::kOutOfMemory) problem("error " + result.error().message);
  } catch (const std::exception& error) {
    fired = std::exchange(t_until_failure, 0) == 0;
    problem(std::string("an exception comes out: ") + error.what());
  }
  if (g_live != live_before) problem(std::to_string(g_live - live_before) + " allocations are lost");
  if (held() != held_before) problem("descriptors, mappings or threads are lost");
  return !clean ? kProblem : fired ? kClean : kNoAllocation;
}

// Lets the 1st, 2nd, 3rd, … allocation of `make` fail, until it makes no more; `stride(k)` is the way from k
// to the next. `make` returns a Result, which is destroyed. Each attempt has a process of its own. `json`:
// one in ten may end in the JSON library's std::terminate. Returns the number of allocations.
template <class Make, class Stride>
int64_t fail_at_each_allocation(const Make& make, const Stride& stride, bool json = false) {
  {
    auto warm = make();  // what is made once in a process
    EXPECT_TRUE(warm) << warm.error().message;
  }
  int64_t terminated = 0, tried = 0, failures_told = 0;
  for (int64_t k = 1;; k += stride(k), ++tried) {
    pid_t child = ::fork();
    if (child == 0) {
      std::set_terminate(on_terminate);
      ::_exit(outcome_of_failure(make, k));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    int outcome = WIFEXITED(status) ? WEXITSTATUS(status) : kProblem;
    if (outcome == kNoAllocation) {
      EXPECT_LE(terminated * 10, tried) << terminated << " of " << tried << " ended in std::terminate";
      return k - 1;
    }
    if (outcome == kTerminated && json)
      ++terminated;
    else if (outcome != kClean) {
      ADD_FAILURE() << "when allocation " << k << " fails"
                    << (WIFSIGNALED(status)      ? ": a crash"
                        : outcome == kTerminated ? ": std::terminate"
                                                 : "");
      if (++failures_told > 8) return k;
    }
  }
}

int64_t every(int64_t) { return 1; }

std::string toy_program() {
  model::MultiEntryPointExporter exporter;
  exporter.limit("rows", 1, 10, 10);
  exporter.dynamic("n", 1, "rows");
  exporter.buffer("cache.keys", model::DType::kF32, {"rows", 20}, 1.5);
  exporter.register_shared_prefix("cache.");
  exporter.constant("scale", std::vector<float>(20, 2.0f), {20});
  exporter.constant_method("scale_of", "scale");
  exporter.section("notes", "kept with the program");
  auto& set = exporter.method("set_cache");
  set.call("write_block", "set", {set.input("k", model::DType::kF32, {"n", 20}), "cache.keys"});
  exporter.method("get_cache").output("k", "cache.keys");
  std::string path = (golden::scratch_directory() / "toy.duet").string();
  EXPECT_TRUE(exporter.save(path));
  return path;
}

TEST(FailingAllocationTest, OpeningAndLoadingAToyProgram) {
  std::string path = toy_program();
  model::SessionOptions options;
  options.threads = 2;
  auto allocations =
      fail_at_each_allocation([&] { return MultiEntryPointRunner::load(path, options); }, every, true);
  EXPECT_GT(allocations, 100);
}

TEST(FailingAllocationTest, OpeningATranslationProgram) {
  std::string path = golden::program("small-b")->path();
  // Tens of thousands: the first ones each, then about every fortieth part of the way, at different
  // remainders.
  auto allocations =
      fail_at_each_allocation([&] { return model::Program::open(path); },
                              [](int64_t k) { return k < 200 ? 1 : 1 + k / 40 + k % 7; }, true);
  EXPECT_GT(allocations, 1000);
}

TEST(FailingAllocationTest, MakingASession) {
  auto program = golden::program("small-b");
  model::SessionOptions options;
  options.threads = 2;
  auto allocations = fail_at_each_allocation([&] { return EncoderDecoderRunner::create(program, options); },
                                             [](int64_t k) { return k < 500 ? 1 : 1 + k % 17; });
  EXPECT_GT(allocations, 500);
}

// Many times in one process: what a failed attempt loses outside of operator new would add up.
TEST(FailingAllocationTest, FailedSessionsLeaveNoMappingsBehind) {
  auto program = golden::program("small-b");
  model::SessionOptions options;
  size_t before = mapped_bytes();
  size_t arenas = 0;
  {
    auto session = model::Session::create(program, options);
    ASSERT_TRUE(session) << session.error().message;
    arenas = (*session)->plan().total_bytes();
  }
  Outcome outcome = kClean;
  for (int64_t k = 1; outcome == kClean; k += 1 + k % 5)
    outcome = outcome_of_failure([&] { return EncoderDecoderRunner::create(program, options); }, k);
  EXPECT_EQ(outcome, kNoAllocation);
  EXPECT_LT(mapped_bytes(), before + arenas) << "mappings are lost";
}

// Two have no such test, for reasons that are foreign. Making a tokenizer: the protobuf parser inside
// SentencePiece leaves a model half made when an allocation fails, and its destructor then follows a wild
// pointer. Converting: where an element of a braced list throws, gcc 12 forgets to destroy some of those
// before it, and destroys others that are not.

}  // namespace
}  // namespace duet::runner
