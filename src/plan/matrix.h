// The table of legal combinations: prefill kind x decode kind x layout, for a problem on a machine.
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

/// One plan per cell. Everything but the backends and the layout comes from `request`. With
/// --kv-cache-dtype, only the layouts of that format are in the table.
std::vector<MatrixCell> make_matrix(const AttentionProblem& problem, const Machine& machine,
                                    const PlanRequest& request, const Registry& registry);

/// A table per layout with a mark in each cell, then an explanation of every mark. `color`: with
/// ANSI colours.
std::string explain_matrix(const std::vector<MatrixCell>& cells, bool color);

/// [{prefill, decode, layout, legal, reasons: [...]}]
nlohmann::ordered_json matrix_json(const std::vector<MatrixCell>& cells);

}  // namespace lathe
