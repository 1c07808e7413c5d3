// JSON text from a file, parsed without exceptions; a name that appears twice in one object is an
// error, because readers that take the first and readers that take the last would load different
// things.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// Bound on the levels of a value: printing, copying and comparing recurse once per level.
inline constexpr int kMostLevels = 500;

/// Errors: malformed, with `field` and the byte where the text stops being JSON, or the repeated
/// name, or values of more than kMostLevels.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& field);

/// A value as it reads in an error message, at most about 60 bytes.
std::string json_excerpt(const nlohmann::json& j);

}  // namespace lathe
