// Plans, refusals and problems as JSON, and plans from JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "base/result.h"
#include "plan/model_plan.h"
#include "plan/plan.h"
#include "plan/planner.h"
#include "plan/reason.h"

namespace lathe {

/// {"legal": true, "problem": ..., "caches": [...], "phases": {...}, "budgets": [...], "notes":
/// [...]}. Sizes that follow from a layout are written too, for readers of the JSON.
nlohmann::ordered_json to_json(const Plan& plan);

/// For a plain plan (one group, no state) to_json(Plan). Otherwise {"legal": true, "groups":
/// [{"name", "layers", "state_bytes", "plan", "delta_layers" if any}], "budgets": [...],
/// "block_tokens", "state_slots", "kept_boundaries", "boundary_bytes"}.
nlohmann::ordered_json to_json(const ModelPlan& plan);

/// {"tp", "heads": {"of_rank", "whole"}, ..., "weight_bytes", "exchange": {...}, "floors": [...]}:
/// a model plan's key "ranks" if there are several.
nlohmann::ordered_json to_json(const RankPlan& plan);

/// {"legal": false, "headline": ..., "reasons": [{rule, subject, field, wanted, offered, hint}],
/// "suggestions": [...]}
nlohmann::ordered_json to_json(const Refusal& refusal);

nlohmann::ordered_json to_json(const Rejection& rejection);

/// Reads what to_json(Plan) writes. Errors: text that is not JSON; a field that is missing or has
/// the wrong type, by its path; an unknown name (listing the known ones); a layout with impossible
/// dims; sizes that contradict the layout.
Result<Plan> plan_from_json(std::string_view text);

}  // namespace lathe
