// Compressed entries on the GPU: folds a step's tokens, and writes what they complete to the pool.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/compress.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "layout/pages/pool_view.h"

namespace lathe::cuda {

/// As ops/compress.h; table: op.table on the device. Errors: a row wider than the kernel has room
/// for.
Result<void> compress(const Compress& op, const RopeTableView& table, const PoolView& pool,
                      Arena& tensors, cudaStream_t stream);

}  // namespace lathe::cuda
