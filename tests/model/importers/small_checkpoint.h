// A tiny writer of Hugging Face Marian directories: a valid one to start from, which a test then spoils in
// one place.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "memory/error.h"

namespace duet::model {

// A directory of its own for the running test, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string write(const std::string& name, const std::string& bytes) const;  // returns the file's path

 private:
  std::string path_;
};

struct SmallTensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string data;
};

using SmallTensors = std::map<std::string, SmallTensor>;

// An F32 tensor; its values differ from element to element and from seed to seed.
SmallTensor small_f32(std::vector<uint64_t> shape, int seed = 0);

// u64 header length, header, data.
std::string safetensors_bytes(const std::string& header, const std::string& data);
std::string safetensors_bytes(const SmallTensors& tensors);

// d_model 8, 1 + 2 layers, 2 and 4 heads, FFN 6 and 10, 12 tokens, 5 positions; all tables tied to
// model.shared.
struct SmallCheckpoint {
  SmallCheckpoint();

  nlohmann::json config;
  nlohmann::json generation;  // null: no generation_config.json
  SmallTensors tensors;

  void write(const TemporaryDirectory& directory) const;
};

// Fails the running test unless the result is an error of that code whose message holds every part.
void expect_error(const Error* error, ErrorCode code, const std::vector<std::string>& parts);

template <class T>
void expect_error(const Result<T>& result, ErrorCode code, const std::vector<std::string>& parts) {
  expect_error(result ? nullptr : &result.error(), code, parts);
}

}  // namespace duet::model
