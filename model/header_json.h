// Parses a program's JSON header, which may come from anywhere: nesting, the keys of an object and doubled
// keys are checked while it is read. (The library copies deep values recursively, and looks for keys one by
// one.)
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "memory/error.h"

namespace duet::model {

class HeaderJson : public nlohmann::json_sax<nlohmann::ordered_json> {
 public:
  using Json = nlohmann::ordered_json;

  // Errors: kBadInput.
  static Result<Json> parse(std::string_view text) {
    HeaderJson header;
    bool complete = Json::sax_parse(text.begin(), text.end(), &header);
    if (complete && header.problem_.empty()) return std::move(header.root_);
    return failure(ErrorCode::kBadInput, "the header is not valid JSON: {}", header.problem_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool key(string_t& key) override {
    Json& object = *open_.back();
    if (object.contains(key)) return stop("the key \"" + key.substr(0, 100) + "\" stands twice in an object");
    if (object.size() >= kMostKeys) return stop("an object has more than 4096 keys");
    next_ = &(object[key] = nullptr);
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    return stop(error.what());
  }

 private:
  static constexpr size_t kMostKeys = 4096;
  static constexpr size_t kMostNesting = 32;

  bool stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }
  Json* place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (!open_.back()->is_array()) return &(*next_ = std::move(value));
    open_.back()->push_back(std::move(value));
    return &open_.back()->back();
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json container) {
    if (open_.size() >= kMostNesting) return stop("it is nested more than 32 deep");
    open_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  Json* next_ = nullptr;     // the value of the key just read
  std::vector<Json*> open_;  // containers around the place being read; none grows while one inside it is open
  std::string problem_;
};

}  // namespace duet::model
