#include "tokenizer/huggingface_tokenizer.h"

#include <exception>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "memory/git_lfs.h"
#include "memory/mapped_file.h"
#include "tokenizer/sentencepiece_check.h"

namespace duet::tokenizer {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileBytes = size_t{256} << 20;

Result<std::string> read(const std::string& path) {
  DUET_ASSIGN(std::string content, memory::read_file(path, kMaxFileBytes));
  DUET_TRY(memory::refuse_git_lfs_pointer(path, content));
  return content;
}

Result<Json> read_object(const std::string& path) {
  DUET_ASSIGN(std::string content, read(path));
  try {
    Json json = Json::parse(content);
    if (!json.is_object())
      return failure(ErrorCode::kBadInput, "{}: a JSON {}, expected an object", path, json.type_name());
    return json;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    return failure(ErrorCode::kBadInput, "{}: does not parse as JSON: {}", path, e.what());
  }
}

// For messages: at most 60 bytes of a value.
std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

Result<std::vector<std::string>> order_pieces(const std::string& path, const Json& entries, uint32_t size) {
  std::vector<const std::string*> by_id(size, nullptr);
  for (auto entry = entries.begin(); entry != entries.end(); ++entry) {
    const std::string& piece = entry.key();
    const Json& id = entry.value();
    if (!id.is_number_integer())
      return failure(ErrorCode::kBadInput, "{}: entry {} is {}, expected an integer", path, shown(piece),
                     shown(id));
    const bool in_range = id.is_number_unsigned() && id.get<uint64_t>() < size;
    if (!in_range)
      return failure(ErrorCode::kBadInput,
                     "{}: entry {} has id {}, expected 0 to {} (the model's vocabulary)", path, shown(piece),
                     shown(id), int64_t{size} - 1);
    const std::string*& slot = by_id[id.get<uint64_t>()];
    if (slot)
      return failure(ErrorCode::kBadInput, "{}: entries {} and {} both have id {}, expected different ids",
                     path, shown(*slot), shown(piece), shown(id));
    slot = &piece;
  }
  std::vector<std::string> pieces;
  pieces.reserve(size);
  for (uint32_t id = 0; id < size; ++id) {
    if (!by_id[id])
      return failure(ErrorCode::kBadInput, "{}: {} entries and none with id {}, expected every id below {}",
                     path, entries.size(), id, size);
    pieces.push_back(*by_id[id]);
  }
  return pieces;
}

Result<std::string> read_vocabulary(const std::string& path, uint32_t size) {
  DUET_ASSIGN(Json entries, read_object(path));
  DUET_ASSIGN(std::vector<std::string> pieces, order_pieces(path, entries, size));
  for (std::string_view name : {Tokenizer::kEndOfSentence, Tokenizer::kUnknown}) {
    if (!entries.contains(name)) return failure(ErrorCode::kBadInput, "{}: no entry \"{}\"", path, name);
  }
  return Vocabulary::serialize(pieces);
}

Result<std::string> read_model(const std::string& path) {
  DUET_ASSIGN(std::string model, read(path));
  auto checked = check_sentencepiece(model);
  if (!checked) return failure(checked.error().code, "{}: {}", path, checked.error().message);
  return model;
}

struct Settings {
  bool separate_vocabularies = false;
  std::string source_language;
  std::string target_language;
};

Result<std::string> text_setting(const std::string& path, const Json& json, const char* key) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return std::string();
  if (!it->is_string())
    return failure(ErrorCode::kBadInput, "{}: {} is {}, expected a string", path, key, shown(*it));
  return it->get<std::string>();
}

// A special token may be a string or an object with its `content`.
Status check_special_name(const std::string& path, const Json& json, const char* key,
                          std::string_view expected) {
  auto it = json.find(key);
  if (it == json.end() || it->is_null()) return {};
  const Json* value = &*it;
  if (value->is_object() && value->contains("content")) value = &value->at("content");
  if (*value == expected) return {};
  return failure(ErrorCode::kUnsupported, "{}: {} is {}, expected \"{}\"", path, key, shown(*value),
                 expected);
}

Result<Settings> read_settings(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return Settings{};
  DUET_ASSIGN(Json json, read_object(path));
  Settings settings;
  if (auto it = json.find("separate_vocabs"); it != json.end() && !it->is_null()) {
    if (!it->is_boolean())
      return failure(ErrorCode::kBadInput, "{}: separate_vocabs is {}, expected true or false", path,
                     shown(*it));
    settings.separate_vocabularies = it->get<bool>();
  }
  DUET_ASSIGN(settings.source_language, text_setting(path, json, "source_lang"));
  DUET_ASSIGN(settings.target_language, text_setting(path, json, "target_lang"));
  DUET_TRY(check_special_name(path, json, "eos_token", Tokenizer::kEndOfSentence));
  DUET_TRY(check_special_name(path, json, "unk_token", Tokenizer::kUnknown));
  DUET_TRY(check_special_name(path, json, "pad_token", Tokenizer::kPadding));
  return settings;
}

}  // namespace

TokenizerBlobs TokenizerFiles::blobs() const {
  auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text.data(), text.size())); };
  return {bytes(source_spm), bytes(target_spm), bytes(source_vocabulary), bytes(target_vocabulary)};
}

Result<TokenizerFiles> read_huggingface_tokenizer(const std::string& directory,
                                                  uint32_t source_vocabulary_size,
                                                  uint32_t target_vocabulary_size) {
  auto path = [&](const char* name) { return directory + "/" + name; };
  TokenizerFiles files;
  DUET_ASSIGN(Settings settings, read_settings(path("tokenizer_config.json")));
  files.source_language = settings.source_language;
  files.target_language = settings.target_language;
  DUET_ASSIGN(files.source_spm, read_model(path("source.spm")));
  DUET_ASSIGN(files.target_spm, read_model(path("target.spm")));
  DUET_ASSIGN(files.source_vocabulary, read_vocabulary(path("vocab.json"), source_vocabulary_size));
  if (settings.separate_vocabularies) {
    DUET_ASSIGN(files.target_vocabulary, read_vocabulary(path("target_vocab.json"), target_vocabulary_size));
  } else if (source_vocabulary_size != target_vocabulary_size) {
    return failure(
        ErrorCode::kBadInput,
        "{}: the model has {} source and {} target pieces but one vocabulary: expected separate_vocabs true "
        "in tokenizer_config.json, or equal sizes",
        directory, source_vocabulary_size, target_vocabulary_size);
  }
  return files;
}

}  // namespace duet::tokenizer
