// JSON schemas as rules of an automaton. Each keyword is honoured, has no effect by the standard,
// or is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "server/grammar/json_rules.h"

namespace lathe::grammar {

/// Adds a rule for the JSON texts of the values that `schema` allows. `path` names it in errors.
/// $ref resolves in `root`; `root_path` is its path in errors. Errors: unsupported, for a keyword,
/// a format or a limit; malformed.
///
/// Properties come in the schema's order, then those named only in `required`, then others. oneOf
/// is treated as anyOf. Without `type`, keywords of one type imply it.
Result<Rule> add_schema(Builder& b, JsonRules& json, const nlohmann::ordered_json& schema,
                        const std::string& path);

}  // namespace lathe::grammar
