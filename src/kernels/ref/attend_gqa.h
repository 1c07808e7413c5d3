// Grouped-query attention in double: each query row over its list of keys.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// For every row and query head h with KV head g = h / (heads / kv_heads), over the tokens t that
/// the row sees (attn/attend.h):
///   s_t = scale * q_h . K_t[g];  out_h = softmax(s) . V_t[g]
/// q: [rows, heads * head_dim], out: [rows, heads * v_head_dim], lse: [rows, heads]. A cached row
/// is K of all KV heads, then V of all KV heads. Tokens are in gqa pools, or in compact rows of
/// bf16 or f32. They are found by page table (causal; with problem.window > 0 only the last
/// `window` tokens, including the row's own) or by index list.
///
/// Errors: check_gqa_args() (check_args.h); on an error nothing was written.
Result<void> ref_attend_gqa(const AttendArgs& args);

}  // namespace lathe
