// Attention of one segment over the cache, by the route that the plan chose.
#pragma once

#include "kernels/context.h"
#include "step/attend_op.h"

namespace lathe {

/// Runs the kernel that op.step->route names. If the route has an adapter, first gathers the keys
/// into op.gather_workspace as compact bf16 rows, and runs the kernel over those. Errors: the
/// kernel's; a kernel that is in no registry, or only described there; a workspace too small for
/// one request.
Result<void> attend(const OpsContext& ops, const AttendOp& op);

}  // namespace lathe
