// JSON values to text and back. nlohmann's parser and printer take GCC two seconds in each file
// that calls them, so they are called here alone. Json: nlohmann::json or nlohmann::ordered_json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace lathe {

/// On one line, or with each level indented by `indent`. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// A value as shown in error messages: ASCII on one line, at most about 60 bytes.
std::string json_excerpt(const nlohmann::json& value);
std::string json_excerpt(const nlohmann::ordered_json& value);

/// The value of a text; a discarded one (Json::is_discarded()) if it is not JSON in UTF-8 or a
/// number exceeds a double.
template <class Json>
Json read_json(std::string_view text);

/// Most levels of a value: printing, copying and comparing recurse once per level.
inline constexpr int kMostLevels = 500;

template <class Json>
struct WatchedJson {
  Json value;
  bool too_deep = false;             // more than kMostLevels; deeper values are dropped
  std::optional<std::string> twice;  // the first name repeated in an object
};

/// Checks nesting and repeated names. Throws Json::parse_error for text that is not JSON in UTF-8,
/// and another Json::exception for numbers beyond double.
template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text);

}  // namespace lathe
