// Compressed entries on the CPU. Arguments as in ops/compress.h.
#pragma once

#include "base/arena.h"
#include "base/execution.h"
#include "base/result.h"
#include "kernels/compress.h"
#include "layout/pages/pool_view.h"

namespace lathe {

Result<void> cpu_compress(const Execution& execution, Arena& arena, const Compress& op,
                          const PoolView& pool);

}  // namespace lathe
