// Parses JSON from files, without exceptions. A repeated name in an object is an error, because
// some readers take the first value and others the last.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// Errors: malformed, with `field` and the byte where the text stops being JSON (by name if
/// Infinity or NaN is there, which Python writes), the repeated name, or the path of a value below
/// more than kMostLevels levels or of a number beyond double.
Result<nlohmann::json> parse_json(std::string_view text, const std::string& field);

}  // namespace lathe
