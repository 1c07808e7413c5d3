// JSON schemas as rules of an automaton. Each keyword is followed, has no effect by the standard,
// or is an error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "server/grammar/schema/json_rules.h"

namespace lathe::grammar {

struct SchemaOptions {
  bool object = false;  // the value is an object, whatever else the schema allows
  // Constraints that no automaton can follow are left out.
  bool lenient = false;
  // If set, gets the paths of what is left out, and of each `oneOf` that is followed as `anyOf`.
  std::vector<std::string>* ignored = nullptr;
};

/// Adds a rule for the JSON texts of the values that `schema` allows (draft 2020-12). `path` names
/// it in errors. Errors: unsupported, for a keyword or a limit; exhausted, for combinations that
/// are too large; malformed.
///
/// Properties come in the schema's order, then those named only in `required`, then others.
/// `format` is followed if formats.h has it, but not in a schema that must not hold, or of which it
/// is told whether it holds. Schemas of `oneOf` that can hold at once exclude each other where the
/// difference can be computed; elsewhere `oneOf` is `anyOf`, and options.ignored names it.
/// minProperties and maxProperties count members: a name that no other keyword names can occur
/// twice.
Result<Rule> add_schema(Builder& b, JsonRules& json, const nlohmann::ordered_json& schema,
                        const std::string& path, const SchemaOptions& options = {});

}  // namespace lathe::grammar
