// The way of queries, keys and values from their projections to an attention kernel and the cache.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Norms each head of q and k where op.norms, and rotates its first table.dim() elements
/// (apply_rope, forward). Queries are rounded once, to op.q_out; keys and values go to op.slots of
/// `pool` (encode_rows). op.q and op.kv are scratch: they may hold any step of that way afterwards.
/// Errors are those of rotate_rows() and write_rows().
Result<void> prepare_qkv(const OpsContext& ops, const QkvRows& op, const PoolView& pool);

}  // namespace lathe
