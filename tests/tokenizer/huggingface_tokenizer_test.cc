#include "tokenizer/huggingface_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fixture.h"

namespace duet::tokenizer {
namespace {

namespace fs = std::filesystem;

// A directory of its own with a tiny, valid tokenizer: 4 pieces.
class HuggingFaceDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ =
        fs::temp_directory_path() / ("duet_tokenizer_" + std::to_string(::getpid()) + "_" +
                                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(directory_);
    write("source.spm", serialize(SpmModel{}));
    write("target.spm", serialize(SpmModel{}));
    write("vocab.json", R"({"</s>": 0, "<unk>": 1, "a": 2, "<pad>": 3})");
  }
  void TearDown() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ / name, std::ios::binary) << content;
  }
  Result<TokenizerFiles> read(uint32_t source = 4, uint32_t target = 4) {
    return read_huggingface_tokenizer(directory_.string(), source, target);
  }
  // The message must name the file and every word given.
  void expect_error(Result<TokenizerFiles> result, std::initializer_list<const char*> words) {
    ASSERT_FALSE(result.has_value());
    for (const char* word : words)
      EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
  }

  fs::path directory_;
};

TEST_F(HuggingFaceDirectory, WithoutAConfigurationIsSharedAndOfNoLanguage) {
  auto files = read();
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_TRUE(files->target_vocabulary.empty());
  EXPECT_EQ(files->source_language, "");
  EXPECT_TRUE(Tokenizer::create(files->blobs()).has_value());
}

TEST_F(HuggingFaceDirectory, TheConfigurationNamesLanguagesAndSeparateVocabularies) {
  write("tokenizer_config.json", R"({"source_lang": "eng", "target_lang": "fra", "separate_vocabs": true})");
  expect_error(read(4, 3), {"target_vocab.json"});
  write("target_vocab.json", R"({"b": 0, "<unk>": 1, "</s>": 2})");
  auto files = read(4, 3);
  ASSERT_TRUE(files.has_value()) << files.error().message;
  EXPECT_EQ(files->source_language, "eng");
  EXPECT_EQ(files->target_language, "fra");
  auto tokenizer = Tokenizer::create(files->blobs());
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_EQ(tokenizer->target_piece(0), "b");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{0, 2}).value(), "b") << "the target side's own </s>";
}

TEST_F(HuggingFaceDirectory, AMissingFileIsNamed) {
  for (const char* name : {"source.spm", "target.spm", "vocab.json"}) {
    SCOPED_TRACE(name);
    fs::rename(directory_ / name, directory_ / "away");
    expect_error(read(), {name});
    fs::rename(directory_ / "away", directory_ / name);
  }
}

TEST_F(HuggingFaceDirectory, AGitLfsPointerIsExplained) {
  write("source.spm", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 802397\n");
  expect_error(read(), {"source.spm", "Git LFS", "git lfs pull"});
}

TEST_F(HuggingFaceDirectory, VocabularyMistakesAreNamed) {
  struct Case {
    const char* json;
    std::initializer_list<const char*> words;
  };
  const Case cases[] = {
      {R"({"</s>": 0,)", {"vocab.json", "JSON"}},
      {R"(["</s>"])", {"vocab.json", "array", "object"}},
      {R"({"</s>": 0, "<unk>": 1, "a": "2", "<pad>": 3})", {"vocab.json", "\"a\"", "\"2\"", "integer"}},
      {R"({"</s>": 0, "<unk>": 1, "a": 2.5, "<pad>": 3})", {"\"a\"", "2.5", "integer"}},
      {R"({"</s>": 0, "<unk>": 1, "a": 4, "<pad>": 3})", {"\"a\"", "4", "0 to 3"}},
      {R"({"</s>": 0, "<unk>": 1, "a": -1, "<pad>": 3})", {"\"a\"", "-1", "0 to 3"}},
      {R"({"</s>": 0, "<unk>": 1, "a": 18446744073709551615, "<pad>": 3})", {"\"a\"", "0 to 3"}},
      {R"({"</s>": 0, "<unk>": 1, "a": 2, "b": 2, "<pad>": 3})", {"\"a\"", "\"b\"", "id 2"}},
      {R"({"</s>": 0, "<unk>": 1, "<pad>": 3})", {"none with id 2"}},
      {R"({"<unk>": 0, "a": 1, "b": 2, "<pad>": 3})", {"vocab.json", "</s>"}},
      {R"({"</s>": 0, "a": 1, "b": 2, "<pad>": 3})", {"vocab.json", "<unk>"}},
      {"{\"</s>\": 0, \"<unk>\": 1, \"\xFF\": 2, \"<pad>\": 3}", {"vocab.json", "JSON"}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.json);
    write("vocab.json", c.json);
    expect_error(read(), c.words);
  }
}

TEST_F(HuggingFaceDirectory, DifferentSizesNeedSeparateVocabularies) {
  expect_error(read(4, 5), {"separate_vocabs", "5"});
}

TEST_F(HuggingFaceDirectory, OtherSpecialNamesAreUnsupported) {
  write("tokenizer_config.json", R"({"eos_token": {"content": "[SEP]"}})");
  auto result = read();
  expect_error(result, {"tokenizer_config.json", "eos_token", "[SEP]"});
  EXPECT_EQ(result.error().code, ErrorCode::kUnsupported);
  write("tokenizer_config.json", R"({"eos_token": "</s>", "separate_vocabs": "yes"})");
  expect_error(read(), {"separate_vocabs", "yes"});
}

TEST_F(HuggingFaceDirectory, AWrongSentencePieceModelIsNamed) {
  write("target.spm", "this is not a model");
  expect_error(read(), {"target.spm", "SentencePiece"});
  write("target.spm", "");
  expect_error(read(), {"target.spm"});
}

}  // namespace
}  // namespace duet::tokenizer
