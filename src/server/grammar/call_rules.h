// Tool calls as a part of an automaton: a list of them, or a model's own form between any text.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "server/grammar/schema/json_rules.h"
#include "server/grammar/source.h"

namespace lathe::grammar {

/// What schemas of tools share.
struct ToolRules {
  Builder& b;
  JsonRules& json;
  bool lenient;                       // constraints that cannot be followed are left out
  std::vector<std::string>* ignored;  // gets SchemaOptions' paths
};

/// A list of {"name", "parameters"}. Errors: add_schema()'s.
Result<State> add_calls(const ToolRules& rules, const Source& source, State from);

/// Any text, and calls in the form of the model. Errors: add_schema()'s; in a form with a mark for
/// each argument, a schema that says more of the arguments together than which there are, and a
/// string that follows more than `enum` and `const`.
Result<State> add_text_and_calls(const ToolRules& rules, const Source& source, State from);

}  // namespace lathe::grammar
