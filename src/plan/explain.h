// Plans and refusals as text for users.
#pragma once

#include <string>
#include <vector>

#include "plan/model_plan.h"
#include "plan/plan.h"
#include "plan/planner.h"
#include "plan/reason.h"

namespace lathe {

/// A line for each cache, phase, budget and note. Ends with a newline.
std::string explain(const Plan& plan);

/// A line that names each layer group with the lines of its plan, then what concerns all groups.
/// For a plain plan (one group, no state) exactly explain(Plan).
std::string explain(const ModelPlan& plan);

/// The kinds of a phase's routes in order of preference: "ragged/inplace".
std::string kinds(const Plan& plan, Phase phase);

/// Kernels and cache in one line, without a newline: "ragged prefill, inplace decode over mla_bf16,
/// page 64".
std::string summary(const Plan& plan);

/// The groups' summaries; equal ones once.
std::string summary(const ModelPlan& plan);

/// "refused: ...", a line per reason, and a line "try ...". Ends with a newline.
std::string explain(const Refusal& refusal);

/// A line for each kernel, layout and phase that was tried and did not fit. Ends with a newline
/// unless empty.
std::string explain(const std::vector<Rejection>& rejections);

/// All rules with when each is broken; all kinds with their names in other systems; all kernels of
/// a registry with what each accepts.
std::string explain_rules();
std::string explain_kinds();
std::string explain_kernels(const Registry& registry);

/// "512 MiB", "1.0 GiB", "36,864 B"
std::string human_bytes(std::int64_t bytes);

/// "ranks", "weights", "exchange" and "floor" lines. Empty for one rank.
std::string explain_ranks(const RankPlan& plan, double cache_bytes_per_token);

/// 64640 as "64,640".
std::string grouped(std::int64_t n);

}  // namespace lathe
