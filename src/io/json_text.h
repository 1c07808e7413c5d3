// Parses JSON from files, without exceptions. A repeated name in an object is an error, because
// some readers take the first value and others the last.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// Most levels of a value: printing, copying and comparing recurse once per level.
inline constexpr int kMostLevels = 500;

/// Errors: malformed, with `field` and the byte where the text stops being JSON, the repeated name,
/// or more than kMostLevels levels.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& field);

/// A value on one line; bytes that are no UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json& j);

/// A value as shown in error messages, at most about 60 bytes.
std::string json_excerpt(const nlohmann::json& j);

}  // namespace lathe
