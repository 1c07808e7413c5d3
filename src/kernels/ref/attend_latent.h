// Absorbed latent attention in double, each query row over its list of keys: dense, sparse, and
// V4's window plus compressed entries.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// For every row and head, over the keys k that the row sees (attn/attend.h):
///   s_k = scale * q . k over nope and rope;  out = softmax(s) . k[0 .. v_dim)
/// q: [rows, heads * (nope + rope)], already absorbed and rotated; out: [rows, heads * v_dim]; lse:
/// [rows, heads]. v_dim is nope, or nope + rope for window_compressed: V4's keys are its values.
///
/// Problems and sources: dense_latent and sparse_latent by page table (causal) or index list.
/// window_compressed: `main` by page table with problem.window, or by index list; with
/// compress_ratio > 0 also `extra` by index list, and one softmax over both. Pools of any latent
/// layout, or compact rows of bf16 or f32.
///
/// Errors: check_latent_args() (check_args.h); on an error nothing was written.
Result<void> ref_attend_latent(const AttendArgs& args);

}  // namespace lathe
