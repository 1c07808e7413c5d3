// The flags that become PlanRequest, the same for every subcommand that plans.
#pragma once

#include "plan/plan_request.h"
#include "tools/flags/flags.h"

namespace lathe {

/// Adds --prefill-attention-backend, --kv-layout, --page-size and the other flags of a plan, with
/// the names and aliases of other systems. `request` must outlive the app.
void add_plan_flags(Command command, PlanRequest& request);

}  // namespace lathe
