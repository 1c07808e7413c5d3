// The indexer's steps between the projections and the selection of keys: norm, RoPE, quantization
// and the write into the cache. Fused on a GPU.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Norms and rotates the rows of k and writes them to their slots (rope_quantize_write()). Rotates
/// op.q; a device may also quantize it as select_keys() does, and then returns the codes, in
/// ops.tensors. op.q and op.k are clobbered. pool: of index keys. Errors: the errors of
/// rope_quantize_write() and rotate_rows().
Result<IndexCodes> prepare_index(const OpsContext& ops, const IndexerRows& op,
                                 const PoolView& pool);

}  // namespace lathe
