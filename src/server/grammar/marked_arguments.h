// Arguments with a mark for each, as <parameter=NAME>VALUE</parameter>: strings are written as they
// are, other values as JSON.
#pragma once

#include <string_view>

#include "base/result.h"
#include "server/grammar/call_rules.h"

namespace lathe::grammar {

/// Adds the text of a mark, in which newlines may be missing.
State add_mark(Builder& b, State from, std::string_view mark);

/// Adds the arguments of a tool in the form's marks: those of `properties` in their order, the
/// required ones always; of a tool without a schema any. Errors: unsupported, for a keyword of the
/// tool's schema, or of a string's, that this form does not follow; add_schema()'s.
Result<State> add_marked_arguments(const ToolRules& rules, const Tool& tool, const CallForm& form,
                                   State from);

}  // namespace lathe::grammar
