// Wishes and dims of a problem as a JSON object: what callers of the library give where the command
// takes flags.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "attn/problem_name.h"
#include "attn/wishes.h"
#include "base/result.h"

namespace lathe {

/// A key of the object and the type of its value: "str", "int" or "bool". Keys are the flags of
/// `lathe plan` with underscores.
struct WishKey {
  std::string_view key;
  std::string_view type;
};
std::vector<WishKey> wish_keys();

/// Sets one key. Errors: a value of another type or out of the type's range; an unknown key,
/// listing the known ones.
Result<void> set_wish(std::string_view key, const nlohmann::json& value, Wishes& wishes,
                      ProblemOptions& options);

}  // namespace lathe
