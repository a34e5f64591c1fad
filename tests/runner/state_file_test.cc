#include "runner/state_file.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "tests/model/support.h"

namespace duet::runner {
namespace {

using model::expect_error;
using model::MultiEntryPointExporter;
using model::Session;
using model::TemporaryDirectory;

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The bytes of a state file with the checksum that they should have.
std::string with_checksum(std::string bytes) {
  uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size() - 8);
  std::memcpy(bytes.data() + bytes.size() - 8, &checksum, 8);
  return bytes;
}

std::string replaced(std::string bytes, const std::string& from, const std::string& to) {
  size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  return with_checksum(bytes.replace(at, from.size(), to));
}

class StateFileTest : public testing::Test {
 protected:
  std::shared_ptr<const model::Program> make(void (*build)(MultiEntryPointExporter&),
                                             const std::string& name) {
    MultiEntryPointExporter exporter;
    build(exporter);
    return model::save_and_open(exporter, directory_, name);
  }
  std::unique_ptr<Session> cache(model::Limits limits = {}) {
    return model::open_session(make(model::build_cache, "cache"), std::move(limits));
  }
  static void set_cache(Session& session, std::vector<float> row) {
    row.resize(20);
    model::TensorView views[] = {model::view_of(row, {1, 20}), model::view_of(row, {1, 20})};
    auto result = session.execute(session.find_method("set_cache"), views);
    ASSERT_TRUE(result) << result.error().message;
  }
  static std::vector<std::byte> state_of(Session& session) {
    auto arena = session.shared_arena();
    return {arena.begin(), arena.end()};
  }
  std::string path(const std::string& name = "state") const { return directory_.path() + "/" + name; }
  void expect_refused(const std::string& bytes, ErrorCode code, const std::vector<std::string>& parts) {
    auto session = cache();
    auto before = state_of(*session);
    expect_error(load_state(*session, directory_.write("refused", bytes)), code, parts);
    EXPECT_EQ(state_of(*session), before) << "a refused file changed the state";
  }
  std::string saved() {
    auto session = cache();
    set_cache(*session, {1, 2, 3});
    Status status = save_state(*session, path());
    EXPECT_TRUE(status) << status.error().message;
    return read_bytes(path());
  }

  TemporaryDirectory directory_;
};

TEST_F(StateFileTest, AnotherSessionGoesOnFromTheFile) {
  auto session = cache();
  set_cache(*session, {1, 2, 3});
  ASSERT_TRUE(save_state(*session, path()));
  EXPECT_FALSE(std::filesystem::exists(path() + ".part"));
  auto other = cache();
  EXPECT_NE(state_of(*other), state_of(*session));
  Status loaded = load_state(*other, path());
  ASSERT_TRUE(loaded) << loaded.error().message;
  EXPECT_EQ(state_of(*other), state_of(*session));
  EXPECT_EQ(other->shared("cache.keys").as<float>()[2], 3.0F);
}

TEST_F(StateFileTest, TheFileIsAsThePageDescribesIt) {
  std::string bytes = saved();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data() + 16, 8);
  EXPECT_EQ(bytes.substr(0, 8), "DUETSTAT");
  EXPECT_EQ(bytes.substr(8, 8), std::string("\x01\0\0\0\0\0\0\0", 8));
  auto header = nlohmann::json::parse(bytes.substr(24, header_bytes));
  EXPECT_EQ(header["shared_bytes"], 1664);
  EXPECT_EQ(header["buffers"][0]["name"], "cache.keys");
  EXPECT_EQ(header["buffers"][0]["shape"], (std::vector<int>{10, 20}));
  size_t start = (24 + header_bytes + 63) / 64 * 64;
  EXPECT_EQ(bytes.size(), start + 1664 + 8);
  float first[3];
  std::memcpy(first, bytes.data() + start + header["buffers"][0]["offset"].get<size_t>(), sizeof first);
  EXPECT_EQ(first[1], 2.0F);
  EXPECT_EQ(with_checksum(bytes), bytes);
}

TEST_F(StateFileTest, StateOfAnotherProgramOrLimitsIsRefusedByName) {
  auto marian = make(model::build_small_marian, "marian");
  auto session = model::open_session(marian, {{"slots", 3}}),
       other = model::open_session(marian, {{"slots", 4}});
  ASSERT_TRUE(save_state(*session, path()));
  expect_error(load_state(*other, path()), ErrorCode::kUsage,
               {path(), "limit slots is 3 in the file and 4 in this session", "\"slots\":3"});
  expect_error(load_state(*cache(), path()), ErrorCode::kUsage, {"another program"});
}

TEST_F(StateFileTest, TheIdentityFollowsWeightsAndOperatorsButNotNamesForPeople) {
  auto identity = [&](const std::function<void(MultiEntryPointExporter&)>& change, const char* name) {
    MultiEntryPointExporter exporter;
    model::build_cache(exporter);
    change(exporter);
    return program_identity(model::save_and_open(exporter, directory_, name)->definition());
  };
  uint64_t same = identity([](auto&) {}, "a");
  EXPECT_EQ(same, identity([](auto& exporter) { exporter.metadata()["name"] = "x"; }, "b"));
  auto with_constant = [&](int32_t value, const char* name) {
    return identity([&](auto& exporter) { exporter.constant("more", std::vector<int32_t>{value}, {1}); },
                    name);
  };
  EXPECT_NE(same, with_constant(1, "c"));
  EXPECT_NE(with_constant(1, "d"), with_constant(2, "e"));
  EXPECT_NE(same, identity([](auto& exporter) { exporter.method("get2").output("k", "cache.keys"); }, "f"));
}

TEST_F(StateFileTest, DamagedBytesAreRefused) {
  std::string bytes = saved();
  for (size_t at = 0; at < bytes.size(); at += 1 + at / 16) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    auto session = cache();
    auto before = state_of(*session);
    EXPECT_FALSE(load_state(*session, directory_.write("damaged", damaged))) << "byte " << at;
    EXPECT_EQ(state_of(*session), before) << "byte " << at;
  }
}

TEST_F(StateFileTest, FilesThatAreCutShortOrTooLongAreRefused) {
  std::string bytes = saved();
  for (size_t size = 0; size < bytes.size(); size += 1 + size / 16)
    EXPECT_FALSE(load_state(*cache(), directory_.write("short", bytes.substr(0, size)))) << size;
  expect_refused(bytes + "x", ErrorCode::kBadInput, {"the file has", "expected", "cut short or damaged"});
  expect_refused("", ErrorCode::kBadInput, {"is no state file: it has 0 bytes"});
  expect_refused(std::string(100, 'x'), ErrorCode::kBadInput, {"does not begin with \"DUETSTAT\""});
}

TEST_F(StateFileTest, HeadersWithARightChecksumAreCheckedFieldByField) {
  std::string bytes = saved();
  expect_refused(replaced(bytes, "DUETSTAT\x01", "DUETSTAT\x02"), ErrorCode::kUnsupported,
                 {"state version 2"});
  expect_refused(replaced(bytes, "\"limits\":{}", "\"limits\":[]"), ErrorCode::kUsage,
                 {"limit it is no object"});
  expect_refused(replaced(bytes, "\"limits\":{}", "\"limits\":{]"), ErrorCode::kBadInput, {"not valid JSON"});
  expect_refused(replaced(bytes, "\"shared_bytes\":1664", "\"shared_bytes\":1600"), ErrorCode::kUsage,
                 {"shared_bytes is 1600 in the file and 1664"});
  expect_refused(replaced(bytes, "\"shared_bytes\"", "\"shared-bytes\""), ErrorCode::kBadInput,
                 {"no field \"shared_bytes\""});
  expect_refused(replaced(bytes, "\"shape\":[10,20]", "\"shape\":[20,10]"), ErrorCode::kUsage,
                 {"buffers[0] (\"cache.keys\"): shape is [20,10] in the file and [10,20]"});
  expect_refused(replaced(bytes, "\"dtype\":\"f32\"", "\"dtype\":\"i32\""), ErrorCode::kUsage,
                 {"dtype is \"i32\""});
  expect_refused(replaced(bytes, "\"offset\":0", "\"offset\":9"), ErrorCode::kUsage, {"offset is 9"});
  std::string large = bytes;
  uint64_t header_bytes = UINT64_MAX - 8;
  std::memcpy(large.data() + 16, &header_bytes, 8);
  expect_refused(with_checksum(large), ErrorCode::kBadInput, {"header of 18446744073709551607 bytes"});
}

TEST_F(StateFileTest, WhatIsNoRegularFileIsNeitherReadNorReplaced) {
  auto session = cache();
  expect_error(load_state(*session, path("none")), ErrorCode::kIo, {"none", "No such file"});
  expect_error(load_state(*session, "/dev/zero"), ErrorCode::kIo, {"a device"});
  expect_error(save_state(*session, "/dev/null"), ErrorCode::kIo, {"is no regular file"});
  expect_error(save_state(*session, path("no/such/directory")), ErrorCode::kIo, {"does not exist"});
}

// Whoever makes a state file may put anything into the buffers: operators give errors or nonsense, never
// more.
TEST_F(StateFileTest, HostileStateWithARightChecksumCannotCrashACall) {
  auto marian = make(model::build_small_marian, "marian");
  auto begin = [&] { return model::open_session(marian, {{"slots", 2}}, 2); };
  auto session = begin();
  std::vector<int32_t> tokens = {3, 4, 0}, lengths = {3}, slot = {0}, start = {11}, one = {1}, limit = {4};
  model::TensorView views[] = {model::view_of(tokens), model::view_of(lengths), model::view_of(slot),
                               model::view_of(start),  model::view_of(one),     model::view_of(limit)};
  auto begun = session->execute(session->find_method("reset_encode_prefill"), views);
  ASSERT_TRUE(begun) << begun.error().message;
  ASSERT_TRUE(save_state(*session, path()));
  const std::string sound = read_bytes(path());
  const size_t shared = session->plan().shared_bytes, first = sound.size() - 8 - shared;
  std::mt19937 random(5);
  int succeeded = 0;
  for (int round = 0; round < 200; ++round) {
    std::string bytes = sound;
    // Everything, a few words, or a few words of the small buffers that lie in front of the caches.
    size_t words = round % 4 == 0 ? shared / 4 : 1 + random() % 6;
    size_t range = round % 4 == 3 ? shared / 4 : std::min<size_t>(shared / 4, 160);
    for (size_t i = 0; i < words; ++i) {
      int32_t word =
          random() % 2 == 0 ? static_cast<int32_t>(random() % 40) - 8 : static_cast<int32_t>(random());
      size_t at = words == shared / 4 ? i : random() % range;
      std::memcpy(bytes.data() + first + 4 * at, &word, 4);
    }
    auto hostile = begin();
    Status loaded = load_state(*hostile, directory_.write("hostile", with_checksum(bytes)));
    ASSERT_TRUE(loaded) << loaded.error().message;
    for (int32_t each : {0, 1}) {
      std::vector<int32_t> slots = {each};
      model::TensorView view = model::view_of(slots);
      for (const char* method : {"decode", "decode", "release"})
        succeeded += hostile->execute(hostile->find_method(method), {&view, 1}).has_value();
    }
    (void)hostile->execute(hostile->find_method("reset_encode_prefill"), views);
  }
  EXPECT_GT(succeeded, 0);  // so that not all were stopped by the first check
  EXPECT_LT(succeeded, 200 * 6);
}

}  // namespace
}  // namespace duet::runner
