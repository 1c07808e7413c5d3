// Renders a syntax tree.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "io/template/jinja_ast.h"
#include "io/template/jinja_runtime.h"

namespace lathe {

/// Renders a template with these variables. Throws JinjaFailure.
std::string render_jinja(const JinjaBody& body,
                         const std::vector<std::pair<std::string, JinjaValue>>& variables,
                         const JinjaLimits& limits, const std::tm& now);

}  // namespace lathe
