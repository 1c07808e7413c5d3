// Tells JSON that is too deep or has too large a number from text that is no JSON.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace lathe {

/// Why read_json() and its like do not read `text`, if it is JSON beyond their limits: more than
/// kMostLevels levels, or a number that no double holds. The field is `path` and the value's own.
std::optional<Error> find_json_limit(std::string_view text, const std::string& path);

}  // namespace lathe
