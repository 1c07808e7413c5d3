// Delta-rule layers on the CPU. Arguments as in ops/delta_rule.h.
#pragma once

#include "base/arena.h"
#include "base/execution.h"
#include "kernels/delta_rule.h"

namespace lathe {

void cpu_delta_rule(const Execution& execution, Arena& arena, const DeltaRule& op);

}  // namespace lathe
