// PlanRequest and the dims of a problem from a JSON object, which callers of the library pass
// instead of the command's flags.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "attn/problem_name.h"
#include "base/result.h"
#include "plan/plan_request.h"

namespace lathe {

/// A key of the object and its type: "str", "int" or "bool". Keys are the flags of `lathe plan`
/// with underscores.
struct PlanRequestKey {
  std::string_view key;
  std::string_view type;
};
std::vector<PlanRequestKey> plan_request_keys();

/// Sets one key. Errors: a value of another type, or out of range; an unknown key (listing the
/// known ones).
Result<void> set_in_request(std::string_view key, const nlohmann::json& value, PlanRequest& request,
                            ProblemOptions& options);

/// For an attention problem without a model. Errors: more than one rank, since the problem's heads
/// are those of one rank.
Result<void> check_one_rank(const PlanRequest& request);

/// `request` with flags of `lathe plan`, such as "--page-size 64" or "--disable-cuda-graph". None:
/// `flags` has a flag that is not a PlanRequest's, or a value of another type.
std::optional<PlanRequest> with_flags(PlanRequest request, std::string_view flags);

}  // namespace lathe
