// Two thousand damaged programs through duet info, verify and translate, as a user would meet them: with 1
// GiB of address space each ends with 0 or one line and 3, never with a signal, never late. (Where the header
// was sealed again, so that the damage is as good as written by hand, also 4: a limit that asks for more
// memory than there is.)
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "model/program_header.h"
#include "tests/model/support.h"
#include "tests/runner/golden.h"
#include "tests/runner/run_command.h"

namespace duet::runner {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr rlim_t kAddressSpace = RLIM_INFINITY;  // sanitizers reserve terabytes
#else
constexpr rlim_t kAddressSpace = rlim_t{1} << 30;
#endif

constexpr int kFiles = 2000, kThreads = 2;

std::string damaged(std::string bytes, std::mt19937& random, bool sealed) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 8, 8);
  size_t header_end = model::kFixedHeaderBytes + header_bytes;
  if (random() % 8 == 0) bytes.resize(random() % bytes.size());
  for (unsigned n = 1 + static_cast<unsigned>(random() % 3); n > 0 && !bytes.empty(); --n) {
    size_t at = random() % std::min(bytes.size(), random() % 4 ? header_end : bytes.size());
    char& c = bytes[at];
    // Behind the checksum, digits for digits: other changes end in the JSON parser.
    c = sealed && std::isdigit(c) ? static_cast<char>('0' + random() % 10)
                                  : static_cast<char>(c ^ 1 << random() % 8);
  }
  return sealed ? model::resealed(std::move(bytes)) : bytes;
}

TEST(DamagedPrograms, EndWithOneLineOrWorkAndDoNoHarm) {
  fs::path folder = golden::scratch_directory();
  std::string whole = (folder / "whole.duet").string();
  auto made = run_duet({"convert", "-q", DUET_TEST_DATA "/../golden/small-b/model", "-o", whole});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  std::ifstream file(whole, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const char* own_seed = std::getenv("DUET_TEST_SEED");  // other damage than every day's

  std::atomic<int> fine = 0, refused = 0, unseen = 0;
  auto work = [&](int thread) {
    std::mt19937 random(static_cast<uint32_t>(thread + kThreads * (own_seed ? std::atoi(own_seed) : 0)));
    std::string path = (folder / fmt::format("damaged{}.duet", thread)).string();
    for (int i = 0; i < kFiles / kThreads; ++i) {
      const bool sealed = random() % 2 == 0;
      std::string changed = damaged(bytes, random, sealed);
      std::ofstream(path, std::ios::binary) << changed;
      std::vector<std::string> arguments = {"info", path};
      if (i % 3 == 1) arguments = {"verify", path};
      if (i % 3 == 2) arguments = {"translate", "-q", "--threads", "1", "-m", path, "Hello"};
      auto result =
          run_duet(arguments, {.resource_limits = {{RLIMIT_AS, kAddressSpace}}, .timeout_seconds = 20});
      bool told = result.err.starts_with("duet: ") &&
                  std::count(result.err.begin(), result.err.end(), '\n') == 1 && result.err.size() < 1000;
      bool good =
          result.exit_code == 0 || (told && (result.exit_code == 3 || (sealed && result.exit_code == 4)));
      if (!good) {
        std::string kept = fmt::format("{}.{}", path, i);
        ADD_FAILURE() << arguments[0] << " " << kept << ": exit code " << result.exit_code << ", signal "
                      << result.signal << (result.timed_out ? ", hangs" : "") << ": "
                      << result.err.substr(0, 500);
      }
      (result.exit_code == 0 ? fine : refused)++;
      if (arguments[0] == "verify" && result.exit_code == 0 && changed != bytes &&
          changed != model::resealed(changed))
        ++unseen;
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(unseen, 0) << "verify must see every change";
  EXPECT_GT(refused, kFiles / 2);
  EXPECT_GT(fine, kFiles / 50);
}

}  // namespace
}  // namespace duet::runner
