// Attention over compact bf16 rows: the gather adapter on the device, for rows that have lists.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "step/attend_op.h"

namespace lathe::cuda {

/// As attend_compact() (step/compact_attend.h) where op has lists: as many rows at a time as
/// op.gather_workspace holds keys of, each row's keys copied for itself. What kernels are told of
/// the rows lies in `tensors`, four bytes for each key of the workspace and eight for each row.
/// Errors: those of the copies and of the kernel; no lists; a workspace too small for a row.
Result<void> attend_selected(const AttendOp& op, AttendFn kernel, const Execution& execution,
                             Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
