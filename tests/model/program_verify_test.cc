// verify_bytes(): a program file in which any byte differs from what was written does not pass.
#include "model/program_verify.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "memory/log.h"
#include "model/program_header.h"
#include "tests/model/support.h"

namespace duet::model {
namespace {

class Verify : public testing::Test {
 protected:
  void SetUp() override {
    memory::set_log_level(memory::LogLevel::kError);
    MultiEntryPointExporter exporter;
    build_cache(exporter);
    exporter.constant("odd", std::vector<float>(37, 0.5f), {37});  // padding between constants
    exporter.constant("zeros", std::vector<float>(20, 0.0f), {20});
    exporter.section("empty", "");
    exporter.section("words", "a few words");
    ASSERT_TRUE(save_and_open(exporter, directory_, "small"));
    path_ = directory_.path() + "/small.duet";
    std::ifstream file(path_, std::ios::binary);
    bytes_ = {std::istreambuf_iterator<char>(file), {}};
  }

  Result<VerifiedBytes> verify(const std::string& path) {
    DUET_ASSIGN(auto program, Program::open(path));
    return verify_bytes(*program);
  }
  Result<VerifiedBytes> verify_changed(const std::string& bytes) {
    return verify(directory_.write("changed.duet", bytes));
  }

  TemporaryDirectory directory_;
  std::string path_, bytes_;
};

TEST_F(Verify, CountsEveryByteOfAWholeFile) {
  auto verified = verify(path_);
  ASSERT_TRUE(verified) << verified.error().message;
  EXPECT_EQ(verified->sections, 11u);
  EXPECT_EQ(verified->constants, 3u * 4 + 37 * 4 + 20 * 4);
  EXPECT_EQ(verified->header + verified->sections + verified->constants + verified->padding, bytes_.size());
}

TEST_F(Verify, FindsEverySingleChangedByteOfAProgram) {
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  auto put = [&](size_t at, char byte) { file.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  for (size_t at = 0; at < bytes_.size(); ++at) {
    for (int change : {1 << at % 8, 0xff}) {
      put(at, static_cast<char>(bytes_[at] ^ change));
      auto verified = verify(path_);
      ASSERT_FALSE(verified) << "byte " << at << " changed by " << change;
      EXPECT_EQ(verified.error().code, ErrorCode::kBadInput);
      EXPECT_TRUE(verified.error().message.starts_with(path_ + ": ")) << verified.error().message;
    }
    put(at, bytes_[at]);
  }
  EXPECT_TRUE(verify(path_));
}

TEST_F(Verify, FindsChangedWeightsOfATranslationModelThatOpeningLeavesUnread) {
  MultiEntryPointExporter exporter;
  build_small_marian(exporter);
  auto program = save_and_open(exporter, directory_, "marian");
  ASSERT_TRUE(program);
  ASSERT_TRUE(verify_bytes(*program));
  std::string path = program->path();
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  for (const Constant& constant : program->definition().constants) {
    auto at =
        constant.data.data() - program->file().data() + static_cast<ptrdiff_t>(constant.data.size() / 2);
    char old = static_cast<char>(program->file()[static_cast<size_t>(at)]);
    file.seekp(at).put(static_cast<char>(old ^ 4)).flush();
    EXPECT_TRUE(Program::open(path));
    expect_error(
        verify(path), ErrorCode::kBadInput,
        {path, "constant \"" + constant.name + "\"", "checksum", fmt::format("{:016x}", constant.checksum)});
    file.seekp(at).put(old).flush();
  }
}

TEST_F(Verify, TellsHowManyConstantsAreDamaged) {
  std::string changed = bytes_;
  for (size_t i = changed.size() - 300; i < changed.size(); ++i)
    changed[i] = static_cast<char>(changed[i] ^ 1);
  expect_error(verify_changed(changed), ErrorCode::kBadInput, {"is damaged", "so is 1 other"});
}

TEST_F(Verify, FindsBytesThatBelongToNothing) {
  for (size_t more : {1u, 63u, 64u, 1000u})
    expect_error(verify_changed(bytes_ + std::string(more, '\0')), ErrorCode::kBadInput,
                 {fmt::format("{} bytes behind the last byte of data", more)});
  // The last constant moved by 64 bytes, a hole in front of it.
  auto program = Program::open(path_);
  ASSERT_TRUE(program);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data() + 8, 8);
  auto header = nlohmann::ordered_json::parse(bytes_.substr(kFixedHeaderBytes, header_bytes));
  auto& last = header["constants"].back();
  uint64_t start = data_start(header_bytes), at = last["offset"].get<uint64_t>();
  last["offset"] = at + 64;
  std::string text = header.dump() + "\n", data = bytes_.substr(start);
  data.insert(at, 64, '\0');
  FixedPart fixed = fixed_part(text);
  std::string moved = std::string(reinterpret_cast<const char*>(&fixed), sizeof fixed) + text;
  moved.resize(data_start(text.size()), '\0');
  expect_error(verify_changed(moved + data), ErrorCode::kBadInput, {"belong to no section or constant"});
}

}  // namespace
}  // namespace duet::model
