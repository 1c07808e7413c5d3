// Latent attention's steps between the projections and the attention kernel: norm, absorption,
// RoPE, cast and the write into the cache. Fused on a GPU.
#pragma once

#include "base/result.h"
#include "kernels/context.h"
#include "kernels/operators.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Norms the latent of each row of k, or the whole row, and writes the row to its slot
/// (rope_quantize_write()). With op.norms_queries, norms each head of q. With op.absorbs, projects
/// the columns of q that do not rotate into the latent space. Rotates the other columns of q,
/// rounds once and writes op.q_out. op.q and op.k are clobbered. Errors: the errors of
/// rope_quantize_write() and rotate_rows().
Result<void> prepare_latent(const OpsContext& ops, const LatentRows& op, const PoolView& pool);

}  // namespace lathe
