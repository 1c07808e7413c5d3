// The way of latent attention's queries and keys from their projections to an attention kernel and
// the cache.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Norms the latent of each row of k and writes the row to its slot (rope_quantize_write). Projects
/// the columns of q that do not rotate into the latent space where op.absorbs, rotates the others,
/// and rounds once, to op.q_out. op.q and op.k are scratch: they may hold any step of that way
/// afterwards. Errors are those of rope_quantize_write() and rotate_rows().
Result<void> prepare_latent(const OpsContext& ops, const LatentRows& op, const PoolView& pool);

}  // namespace lathe
