// Chooses a row's keys on the device with the indexer: quantizes queries, scores keys, selects the
// best. Or lists all compressed entries, where there is no choice.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/operators.h"

namespace lathe::cuda {

/// Rows go through in tiles whose scores fit op.budget_bytes. Temporaries come from `tensors`, of
/// device memory. Errors: a launch that fails.
Result<void> select_keys(const SelectKeys& op, Arena& tensors, cudaStream_t stream);

/// The slots of all entries that each row sees, in order, then -1: [rows, width], in memory of
/// `tensors`. width: as entries_width().
Result<std::span<const std::int32_t>> list_entries(const StepView& step,
                                                   const ConstPoolView& entries, std::int64_t width,
                                                   Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
