// Compressed entries in double precision, token by token as defined; states are stored in f32.
// Arguments as in ops/compress.h.
#pragma once

#include "base/result.h"
#include "kernels/compress.h"
#include "layout/pages/pool_view.h"

namespace lathe {

Result<void> ref_compress(const Compress& op, const PoolView& pool);

}  // namespace lathe
