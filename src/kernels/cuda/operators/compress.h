// Compressed entries on the GPU: folds a step's tokens into the states and writes completed entries
// to the pool.
#pragma once

#include <cuda_runtime_api.h>

#include "base/result.h"
#include "kernels/compress.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "layout/pages/pool_view.h"

namespace lathe::cuda {

/// As ops/compress.h; `table` is op.table on the device. Errors: dim above kCompressMostDim, or a
/// layout that a planner gives no entries.
Result<void> compress(const Compress& op, const RopeTableView& table, const PoolView& pool,
                      cudaStream_t stream);

}  // namespace lathe::cuda
