// Grouped-query attention's steps between the projections and the attention kernel: Q/K norm, RoPE,
// cast and the write into the cache. Fused on a GPU.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Norms each head of q and k if op.norms, and rotates its first table.dim() elements
/// (apply_rope(), forward), those of q by op.q_table if there is one. Writes queries to op.q_out,
/// rounded once, and keys and values to op.slots of `pool` (encode_rows()). op.q and op.kv are
/// clobbered. Errors: the errors of rotate_rows() and write_rows().
Result<void> prepare_qkv(const OpsContext& ops, const QkvRows& op, const PoolView& pool);

}  // namespace lathe
