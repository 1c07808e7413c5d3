// Grouped-query attention in double.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// For every row and query head h, which uses key-value head g = h / (heads / kv_heads), over the
/// tokens t that the row sees (attn/attend.h),
///   s_t = scale * q_h . K_t[g];  out_h = softmax(s) . V_t[g]
/// with q [rows, heads * head_dim], out [rows, heads * v_head_dim], lse [rows, heads]. A cached row
/// is K of all kv heads, then V of all kv heads. Tokens come from gqa pools or compact rows of bf16
/// or f32; by page table (causal, with problem.window > 0 the last `window` tokens, the row's own
/// included) or by index list.
///
/// Errors: check_gqa_args (check_args.h); on an error nothing was written.
Result<void> ref_attend_gqa(const AttendArgs& args);

}  // namespace lathe
