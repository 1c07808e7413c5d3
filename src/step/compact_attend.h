// The gather adapter on the host, for kernels that read only compact rows with index lists.
#pragma once

#include "base/arena.h"
#include "step/attend_op.h"

namespace lathe {

/// Attention over bf16 rows that it copies to op.gather_workspace: one request at a time,
/// copying its keys once; if op has lists of selected keys, for a few rows at a time. Index lists
/// are allocated in `arena`. Errors: the kernel's; a workspace too small for a request.
Result<void> attend_compact(const AttendOp& op, const Execution& execution, Arena& arena,
                            AttendFn kernel);

}  // namespace lathe
