// JSON values to text and back. GCC needs two seconds for each file that calls nlohmann's parser or
// printer, so only json.cc calls them. Json is nlohmann::json or nlohmann::ordered_json.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lathe {

/// On one line, or with each level indented by `indent`. Bytes that are not UTF-8 become U+FFFD.
/// Values with digits (json_digits.h) are on one line.
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// A value as shown in error messages: ASCII on one line, at most about 60 bytes.
std::string json_excerpt(const nlohmann::json& value);
std::string json_excerpt(const nlohmann::ordered_json& value);

/// Parses `text`. Returns a discarded value (Json::is_discarded()) if it is not JSON in UTF-8, if a
/// number is too large for a double, or if it has more than kMostLevels levels. The last of equal
/// names in an object wins. Time is linear in the text.
template <class Json>
Json read_json(std::string_view text);

/// An object's members: names, and values as text on one line.
using JsonMembers = std::vector<std::pair<std::string, std::string>>;

/// Of the object that `text` is. Numbers keep their digits, which a double might not hold. The last
/// of equal names wins. nullopt: not an object in JSON, or one with more than kMostLevels levels.
std::optional<JsonMembers> read_members(std::string_view text);
/// The object of these members, on one line.
std::string members_text(const JsonMembers& members);
/// The value of `text` on one line; numbers keep their digits. nullopt as for read_json().
std::optional<std::string> compact_json(std::string_view text);

/// Maximum nesting of a value. Printing, copying and comparing recurse once per level.
inline constexpr int kMostLevels = 500;

/// What reading may cost. A value needs 16 bytes of memory and its text; a name, list or object
/// about 100 more.
struct JsonLimits {
  std::int64_t values = std::numeric_limits<std::int64_t>::max();
  std::int64_t nodes = std::numeric_limits<std::int64_t>::max();  // names, lists and objects
  int levels = kMostLevels;
};

/// A number that no double holds.
struct HugeNumber {
  std::string path;
  std::string digits;  // the first of them
};

/// If one of the last four is set, reading stopped there and `value` is incomplete. A path is that
/// of the value, such as "a.b[3]", and at most some 200 bytes long.
template <class Json>
struct WatchedJson {
  Json value;
  std::optional<std::string> too_deep;  // path of a value below more lists and objects than allowed
  std::optional<std::string> twice;     // the first name repeated in an object
  std::optional<std::string> too_many;  // path of the value that exceeds another limit
  std::optional<HugeNumber> too_large;
};

/// Checks nesting, repeated names, limits and numbers. `exact`: numbers that a double would change
/// keep their digits as read_json_exact()'s do, for ordered_json alone. Throws Json::parse_error
/// for text that is not JSON in UTF-8. Time is linear in the text.
template <class Json>
WatchedJson<Json> read_watched_json(std::string_view text, const JsonLimits& limits = {},
                                    bool exact = false);

}  // namespace lathe
