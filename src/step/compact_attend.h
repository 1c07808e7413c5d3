// The gather adapter on the host, for kernels that take compact rows and index lists only.
#pragma once

#include "base/arena.h"
#include "step/attend_op.h"

namespace lathe {

/// Attention over compact bf16 rows in op.gather_workspace: one request at a time, its keys copied
/// once; or, where op has lists, a few rows at a time. Index lists lie in `arena`. Errors: the
/// kernel's; a workspace too small for a request.
Result<void> attend_compact(const AttendOp& op, const Execution& execution, Arena& arena,
                            AttendFn kernel);

}  // namespace lathe
