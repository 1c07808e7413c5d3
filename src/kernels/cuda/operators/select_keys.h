// Selects each row's keys with the indexer: quantizes the queries, scores all keys, keeps the top
// k. If nothing is ranked, lists all compressed entries instead.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/operators.h"

namespace lathe::cuda {

/// Runs as many rows at a time as op.budget_bytes holds scores for. Temporaries come from
/// `tensors`, in device memory. Errors: a failed launch.
Result<void> select_keys(const SelectKeys& op, Arena& tensors, cudaStream_t stream);

/// [rows, width] in `tensors`: the slots of all entries that a row sees, in order, then -1. width:
/// as entries_width().
Result<std::span<const std::int32_t>> list_entries(const StepView& step,
                                                   const ConstPoolView& entries, std::int64_t width,
                                                   Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
