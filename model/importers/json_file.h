// Reading of configuration files, for the importers only: the one header here that includes the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "memory/error.h"

namespace duet::model {

// An object and where it came from, with accessors that check. A field that is absent or null is "not there".
class JsonObject {
 public:
  // Errors: kIo; kBadInput when the file is too large, is no JSON object, or repeats a key.
  static Result<JsonObject> read(const std::string& path);

  JsonObject(std::string path, nlohmann::json value) : path_(std::move(path)), value_(std::move(value)) {}

  const std::string& path() const { return path_; }
  bool has(std::string_view field) const { return find(field) != nullptr; }
  const nlohmann::json* find(std::string_view field) const;  // null when it is not there

  // The value, or nothing when the field is not there. Errors: kBadInput for another type or a value out of
  // bounds.
  Result<std::optional<uint64_t>> integer(std::string_view field, uint64_t min, uint64_t max) const;
  Result<std::optional<double>> number(std::string_view field) const;
  Result<std::optional<bool>> flag(std::string_view field) const;
  Result<std::optional<std::string>> text(std::string_view field) const;

  // "PATH: FIELD is VALUE, expected EXPECTED"
  tl::unexpected<Error> refuse(ErrorCode code, std::string_view field, std::string_view expected) const;

 private:
  std::string path_;
  nlohmann::json value_;
};

// `text` in double quotes, with control characters escaped, cut to a readable length.
std::string in_quotes(std::string_view text);

// A value as a message shows it: short, whatever its size and depth.
std::string describe(const nlohmann::json& value);

}  // namespace duet::model
