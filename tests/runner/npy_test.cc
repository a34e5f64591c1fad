#include "runner/npy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/model/importers/small_checkpoint.h"

namespace duet::runner {
namespace {

using namespace std::string_literals;  // for text with NUL
using model::DType;
using model::expect_error;
using model::TemporaryDirectory;
using model::TensorView;

// A file as numpy.save() of NumPy 2.4.6 writes it: a dictionary padded to 128 bytes, then the elements.
std::string npy(const std::string& dictionary, const std::string& data) {
  return "\x93NUMPY\x01\x00v\x00"s + dictionary + std::string(117 - dictionary.size(), ' ') + "\n" + data;
}
template <class T>
std::string bytes_of(std::vector<T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  auto values = tensor.values<T>();
  return {values.begin(), values.end()};
}

class NpyTest : public testing::Test {
 protected:
  Result<Tensor> read(const std::string& bytes) {
    DUET_ASSIGN(NpyFile file, NpyFile::open(directory_.write("a.npy", bytes)));
    return file.read();
  }
  void expect_refused(const std::string& bytes, ErrorCode code, const std::vector<std::string>& parts) {
    expect_error(read(bytes), code, parts);
  }
  TemporaryDirectory directory_;
};

TEST_F(NpyTest, AFileOfNumPyIsRead) {
  auto tensor = read(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
                         bytes_of<float>({0, 1, 2, 3, 4, 5})));
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(tensor->dtype, DType::kF32);
  EXPECT_EQ(tensor->dims, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(values_of<float>(*tensor), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST_F(NpyTest, FortranOrderBecomesCOrder) {
  // numpy.save(numpy.asfortranarray(numpy.arange(6).reshape(2, 3)))
  auto tensor = read(npy("{'descr': '<i8', 'fortran_order': True, 'shape': (2, 3), }",
                         bytes_of<int64_t>({0, 3, 1, 4, 2, 5})));
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(values_of<int64_t>(*tensor), (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  std::vector<int32_t> cube(24);  // element [i, j, k] = 100 i + 10 j + k at i + 2 j + 6 k
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 4; ++k) cube[static_cast<size_t>(i + 2 * j + 6 * k)] = 100 * i + 10 * j + k;
  tensor = read(npy("{'descr': '<i4', 'fortran_order': True, 'shape': (2, 3, 4), }", bytes_of(cube)));
  ASSERT_TRUE(tensor) << tensor.error().message;
  EXPECT_EQ(values_of<int32_t>(*tensor)[0 * 12 + 2 * 4 + 3], 23);
  EXPECT_EQ(values_of<int32_t>(*tensor)[1 * 12 + 1 * 4 + 2], 112);
}

TEST_F(NpyTest, ScalarsEmptyArraysAndOtherVersionsAreRead) {
  auto scalar = read(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (), }", "\x01"));
  ASSERT_TRUE(scalar) << scalar.error().message;
  EXPECT_TRUE(scalar->dims.empty());
  EXPECT_EQ(values_of<uint8_t>(*scalar), std::vector<uint8_t>{1});
  auto empty = read(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 7), }", ""));
  ASSERT_TRUE(empty) << empty.error().message;
  EXPECT_EQ(empty->dims, (std::vector<int64_t>{0, 7}));
  std::string dictionary = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  for (const char* version : {"\x02", "\x03"}) {
    auto tensor =
        read("\x93NUMPY"s + version + "\0"s + bytes_of<uint32_t>({static_cast<uint32_t>(dictionary.size())}) +
             dictionary + bytes_of<int32_t>({0, 1, 2}));
    ASSERT_TRUE(tensor) << tensor.error().message;
    EXPECT_EQ(values_of<int32_t>(*tensor), (std::vector<int32_t>{0, 1, 2}));
  }
}

TEST_F(NpyTest, WhatDuetDoesNotHaveIsRefusedByName) {
  auto of = [](const std::string& descr) {
    return npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': (1,), }", std::string(8, '\0'));
  };
  expect_refused(of("'>f4'"), ErrorCode::kUnsupported, {"a.npy", "'>f4' is big-endian"});
  expect_refused(of("'<f2'"), ErrorCode::kUnsupported, {"'<f2'", "expected '<f4'"});
  expect_refused(of("'<u8'"), ErrorCode::kUnsupported, {"'<u8'"});
  expect_refused(of("'|O'"), ErrorCode::kUnsupported, {"'|O'"});
  expect_refused(of("'\x1b[2J'"), ErrorCode::kUnsupported, {"\\x1b"});
  expect_refused(of("[('a', '<f4')]"), ErrorCode::kUnsupported, {"structured"});
  expect_refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, 1, 1, 1), }", "1234"),
                 ErrorCode::kUnsupported, {"5 dimensions"});
  expect_refused("\x93NUMPY\x09\x00v\x00"s + std::string(200, ' '), ErrorCode::kUnsupported, {"version 9.0"});
}

TEST_F(NpyTest, FilesThatAreNotAsLongAsTheySayAreRefused) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  expect_refused(npy(header, std::string(23, 'x')), ErrorCode::kBadInput, {"23 bytes follow", "takes 24"});
  expect_refused(npy(header, std::string(25, 'x')), ErrorCode::kBadInput, {"25 bytes follow"});
  expect_refused(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 16), }", ""),
                 ErrorCode::kBadInput, {"more than any file has"});
}

TEST_F(NpyTest, EveryBeginningOfAFileIsRefused) {
  std::string whole = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "12345678");
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(read(whole.substr(0, size))) << size;
  EXPECT_TRUE(read(whole));
}

TEST_F(NpyTest, DamagedHeadersAreRefused) {
  for (const char* header :
       {"", "{", "{}", "{'descr'}", "{'descr': '<f4'",
        "{'descr': '<f4', 'fortran_order': Maybe, 'shape': (1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", "{'descr': '<f4', 'shape': (1,)}",
        "{'other': 3, 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", "'descr'"})
    expect_refused(npy(header, "1234"), ErrorCode::kBadInput, {"a.npy"});
}

TEST_F(NpyTest, WhatIsNoRegularFileIsRefusedWithoutWaiting) {
  expect_error(NpyFile::open(directory_.path() + "/none.npy"), ErrorCode::kIo, {"none.npy", "No such file"});
  expect_error(NpyFile::open(directory_.path()), ErrorCode::kIo, {"a directory"});
  expect_error(NpyFile::open("/dev/zero"), ErrorCode::kIo, {"a device or pipe"});
  std::string fifo = directory_.path() + "/fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  expect_error(NpyFile::open(fifo), ErrorCode::kIo, {"a device or pipe"});
}

TEST_F(NpyTest, WhatIsWrittenIsReadAgain) {
  std::vector<float> values = {1.5F, -2, 3, 4, 5, 6};
  for (std::vector<int64_t> dims : {std::vector<int64_t>{6}, {2, 3}, {1, 2, 3, 1}}) {
    TensorView view{
        reinterpret_cast<std::byte*>(values.data()), DType::kF32, static_cast<int>(dims.size()), {}};
    std::copy(dims.begin(), dims.end(), view.dims);
    std::string path = directory_.path() + "/b.npy";
    Status written = write_npy(path, view);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
    std::ifstream stream(path);
    std::string bytes((std::istreambuf_iterator<char>(stream)), {});
    EXPECT_EQ((bytes.size() - 24) % 64, 0u);
    auto tensor = read(bytes);
    ASSERT_TRUE(tensor) << tensor.error().message;
    EXPECT_EQ(tensor->dims, dims);
    EXPECT_EQ(values_of<float>(*tensor), values);
  }
}

TEST_F(NpyTest, AFileIsNeverRenamedOverADirectoryOrDevice) {
  float value = 1;
  TensorView view{reinterpret_cast<std::byte*>(&value), DType::kF32, 0, {}};
  expect_error(write_npy(directory_.path(), view), ErrorCode::kIo, {"a directory"});
  expect_error(write_npy("/dev/null", view), ErrorCode::kIo, {"is no regular file"});
}

}  // namespace
}  // namespace duet::runner
