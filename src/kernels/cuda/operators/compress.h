// Compressed entries on the GPU: converts the operator's arguments to the kernel's parameters.
#pragma once

#include "base/result.h"
#include "kernels/compress.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/compress/compress.h"
#include "layout/pages/pool_view.h"

namespace lathe::cuda {

/// As ops/compress.h; `table` is op.table on the device. Errors: dim above kCompressMostDim, or a
/// layout that a planner gives no entries.
Result<CompressParams> compress_params(const Compress& op, const RopeTableView& table,
                                       const PoolView& pool);

}  // namespace lathe::cuda
