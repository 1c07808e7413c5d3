// Attention of one segment over the cache, along the route that the plan chose.
#pragma once

#include "kernels/context.h"
#include "step/attend_op.h"

namespace lathe {

/// Runs the kernel that op.step->route names; where the route has an adapter, over compact bf16
/// rows gathered into op.gather_workspace. Errors: the kernel's; a kernel that no registry holds,
/// or one that is only described; a workspace too small for a request.
Result<void> attend(const OpsContext& ops, const AttendOp& op);

}  // namespace lathe
