// The gather adapter on the GPU: decodes the selected keys to compact bf16 rows and attends to
// those.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "step/attend_op.h"

namespace lathe::cuda {

/// As attend_compact() (step/compact_attend.h), for an op with lists. Each row gets its own copy of
/// its keys; op.gather_workspace bounds how many rows run at a time. Index lists for the kernel are
/// taken from `tensors`: 4 bytes per key of the workspace and per row. Errors: of the copies and
/// the kernel; no lists; a workspace too small for one row.
Result<void> attend_selected(const AttendOp& op, AttendFn kernel, const Execution& execution,
                             Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
