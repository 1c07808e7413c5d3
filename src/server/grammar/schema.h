// JSON schemas as rules of an automaton. Each keyword is honoured, has no effect by the standard,
// or is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "server/grammar/json_rules.h"

namespace lathe::grammar {

/// The texts of the values that `schema` allows. `path` names it in errors. $ref looks in `root`,
/// whose path is `root_path`. Errors: unsupported, for a keyword, a format or a limit; malformed.
///
/// Properties come in the order in which the schema names them, then those that it names only in
/// `required`, then others. oneOf is anyOf. Where no type is given, keywords of one type stand for
/// it.
Result<Rule> add_schema(Builder& b, JsonRules& json, const nlohmann::ordered_json& schema,
                        const std::string& path);

}  // namespace lathe::grammar
