// Parses a Jinja template.
#pragma once

#include <string_view>

#include "io/template/jinja_ast.h"

namespace lathe {

/// The syntax tree of a template. Throws JinjaFailure: malformed, or unsupported for a tag that
/// chat templates do not use.
JinjaBody parse_jinja(std::string_view source);

}  // namespace lathe
