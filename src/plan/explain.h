// Plans and refusals as text for people.
#pragma once

#include <string>
#include <vector>

#include "plan/model_plan.h"
#include "plan/plan.h"
#include "plan/planner.h"
#include "plan/reason.h"

namespace lathe {

/// One line per cache, phase, and consequence; ends with a newline.
std::string explain(const Plan& plan);

/// The same of each layer group under a line that names it, and what concerns all; of a plain plan
/// (one group, no state) exactly what its plan gives.
std::string explain(const ModelPlan& plan);

/// The kinds of a phase's routes in order of preference: "ragged/inplace".
std::string kinds(const Plan& plan, Phase phase);

/// The pair over its cache in one line, without an end of line: "ragged prefill, inplace decode
/// over mla_bf16, page 64".
std::string summary(const Plan& plan);

/// The groups' summaries, once where they are equal.
std::string summary(const ModelPlan& plan);

/// "refused: ..." with a line per reason and the way out; ends with a newline.
std::string explain(const Refusal& refusal);

/// What was tried and did not fit, a line per kernel, layout and phase; ends with a newline unless
/// empty.
std::string explain(const std::vector<Rejection>& rejections);

/// Every rule and when it is broken; every kind and its names in other systems; every kernel of a
/// registry with what it accepts. A line each.
std::string explain_rules();
std::string explain_kinds();
std::string explain_kernels(const Registry& registry);

/// "512 MiB", "1.0 GiB", "36,864 B"
std::string human_bytes(std::int64_t bytes);

}  // namespace lathe
