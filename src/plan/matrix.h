// The legality table: every prefill kind x decode kind x layout of a problem on a machine.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "plan/planner.h"

namespace lathe {

struct MatrixCell {
  KernelKind prefill;
  KernelKind decode;
  LayoutKind layout;
  PlanResult result;
};

/// One plan per cell; what is not a backend or the layout is taken from `request`.
/// Where
/// --kv-cache-dtype is given, only the layouts of that format appear.
std::vector<MatrixCell> make_matrix(const AttentionProblem& problem, const Machine& machine,
                                    const PlanRequest& request, const Registry& registry);

/// A table per layout with a mark per cell and, below, each mark's meaning. `color` adds ANSI
/// colours.
std::string explain_matrix(const std::vector<MatrixCell>& cells, bool color);

/// [{prefill, decode, layout, legal, reasons: [...]}]
nlohmann::ordered_json matrix_json(const std::vector<MatrixCell>& cells);

}  // namespace lathe
