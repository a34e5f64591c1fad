// Checked access to configuration files.
#include "model/importers/json_file.h"

#include <cmath>
#include <set>

#include "memory/git_lfs.h"
#include "memory/mapped_file.h"

namespace duet::model {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = 1 << 20;    // a configuration has a few kilobytes
constexpr size_t kMaxShownBytes = 100;   // of one value in a message
constexpr size_t kMaxShownElements = 8;  // of an array

std::string describe_nested(const json& value, int depth) {
  if (value.is_object()) return value.empty() ? "{}" : fmt::format("an object of {} fields", value.size());
  if (!value.is_array())
    return value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : value.dump();
  if (depth == 0) return fmt::format("an array of {}", value.size());
  std::string shown;
  for (size_t i = 0; i < value.size() && i < kMaxShownElements; ++i)
    shown += (i ? ", " : "") + describe_nested(value[i], depth - 1);
  return fmt::format("[{}{}]", shown, value.size() > kMaxShownElements ? ", ..." : "");
}

}  // namespace

std::string in_quotes(std::string_view text) {
  bool cut = text.size() > kMaxShownBytes;
  if (cut) text = text.substr(0, kMaxShownBytes);
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace) + (cut ? "..." : "");
}

std::string describe(const json& value) { return describe_nested(value, 2); }

Result<JsonObject> JsonObject::read(const std::string& path) {
  DUET_ASSIGN(std::string text, memory::read_file(path, kMaxBytes));
  DUET_TRY(memory::refuse_git_lfs_pointer(path, text));
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> repeated;
  auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second &&
        !repeated)
      repeated = value.get<std::string>();
    return true;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::parse_error& error) {
    return failure(ErrorCode::kBadInput, "{}: not valid JSON at byte {}", path, error.byte);
  } catch (const json::exception& error) {  // a number beyond the range of a double
    return failure(ErrorCode::kBadInput, "{}: not readable as JSON: {}", path, error.what());
  }
  if (repeated)
    return failure(ErrorCode::kBadInput, "{}: field {} is given twice", path, in_quotes(*repeated));
  if (!value.is_object())
    return failure(ErrorCode::kBadInput, "{}: holds {}, expected a JSON object", path, describe(value));
  return JsonObject(path, std::move(value));
}

const json* JsonObject::find(std::string_view field) const {
  auto place = value_.find(field);
  return place == value_.end() || place->is_null() ? nullptr : &*place;
}

Result<std::optional<uint64_t>> JsonObject::integer(std::string_view field, uint64_t min,
                                                    uint64_t max) const {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_number_unsigned() || value->get<uint64_t>() < min || value->get<uint64_t>() > max)
    return refuse(ErrorCode::kBadInput, field, fmt::format("an integer from {} to {}", min, max));
  return value->get<uint64_t>();
}

Result<std::optional<double>> JsonObject::number(std::string_view field) const {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    return refuse(ErrorCode::kBadInput, field, "a number");
  return value->get<double>();
}

Result<std::optional<bool>> JsonObject::flag(std::string_view field) const {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_boolean()) return refuse(ErrorCode::kBadInput, field, "true or false");
  return value->get<bool>();
}

Result<std::optional<std::string>> JsonObject::text(std::string_view field) const {
  const json* value = find(field);
  if (!value) return std::nullopt;
  if (!value->is_string()) return refuse(ErrorCode::kBadInput, field, "a string");
  return value->get<std::string>();
}

tl::unexpected<Error> JsonObject::refuse(ErrorCode code, std::string_view field,
                                         std::string_view expected) const {
  const json* value = find(field);
  if (!value) return failure(code, "{}: {} is missing, expected {}", path_, field, expected);
  return failure(code, "{}: {} is {}, expected {}", path_, field, describe(*value), expected);
}

}  // namespace duet::model
