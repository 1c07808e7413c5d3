// Latent attention by expanding the cache to per-head keys and values, in double (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe {

/// For every row and head h, over the cached rows [latent | rope] at positions that the row sees:
///   K = [w_uk_h latent | rope];  V = w_uv_h latent;  s = scale * q_h . K;  out_h = softmax(s) . V
/// q: [rows, heads * (qk_nope_head + rope)], rotated but not absorbed; out: [rows, heads * v_head];
/// lse: [rows, heads]. In exact arithmetic this equals the absorbed form with q_h' =
/// [w_uk_h^T q_nope | q_rope] and out_h = w_uv_h out_h'.
///
/// For dense_latent, and for sparse_latent if no request has more than top_k keys: the selection is
/// then all of them. By page table only, causal.
///
/// Errors: check_ragged_args() (check_args.h); on an error nothing was written.
Result<void> ref_attend_ragged(const AttendArgs& args);

}  // namespace lathe
