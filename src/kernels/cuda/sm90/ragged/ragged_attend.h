// Attention over keys and values expanded from latents, on Hopper: entry points for the kernel
// registry (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe::cuda {

/// Runs attention on device arrays: q bf16 [rows, heads * (qk_nope_head + rope)], after RoPE; a
/// pool of mla_bf16, mla_fp8 or mla_fp8_block by page table; expansion.kv_b; out bf16 or f32 [rows,
/// heads * v_head]; lse f32. max_request_rows, max_kv_len and total_keys are the host's bounds of
/// q_indptr and kv_lens; keys beyond them are ignored. execution: a stream, and device scratch of
/// ragged_shape() bytes. Expanded keys and values are rounded to bf16. An output's bits depend on
/// the lengths of the whole batch. Errors name the argument; nothing was launched then.
Result<void> attend_ragged_on_device(const AttendArgs& args);

/// Makes the work list of such calls (attn/attend.h, PrepareFn).
Result<void> prepare_ragged_on_device(const AttendArgs& args, Schedule& out);

}  // namespace lathe::cuda
