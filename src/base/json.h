// JSON values to text and back. GCC needs two seconds for each file that calls nlohmann's parser or
// printer, so only json.cc calls them. Json is nlohmann::json or nlohmann::ordered_json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// On one line, or with each level indented by `indent`. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// A value as shown in error messages: ASCII on one line, at most about 60 bytes.
std::string json_excerpt(const nlohmann::json& value);
std::string json_excerpt(const nlohmann::ordered_json& value);

/// Parses `text`. Returns a discarded value (Json::is_discarded()) if it is not JSON in UTF-8, or
/// if a number is too large for a double.
template <class Json>
Json read_json(std::string_view text);

/// Maximum nesting of a value. Printing, copying and comparing recurse once per level.
inline constexpr int kMostLevels = 500;

template <class Json>
struct WatchedJson {
  Json value;
  bool too_deep = false;             // nested beyond kMostLevels; the deeper values were dropped
  std::optional<std::string> twice;  // first name that occurs twice in one object
};

/// Parses `text`, and checks nesting and repeated names. Throws Json::parse_error if it is not JSON
/// in UTF-8, and another Json::exception if a number is too large for a double.
template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text);

}  // namespace lathe
