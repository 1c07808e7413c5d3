// Attention over keys and values expanded from latents, on Hopper, as a kernel of the registry
// (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe::cuda {

/// AttendArgs whose arrays lie on the device: q bf16 [rows, heads * (qk_nope_head + rope)],
/// rotated; a pool of mla_bf16, mla_fp8 or mla_fp8_block by page table; expansion.kv_b; out bf16 or
/// f32 [rows, heads * v_head]; lse f32. max_request_rows, max_kv_len and total_keys are the host's
/// bounds of q_indptr and kv_lens; keys beyond them are not seen. execution: a stream, and scratch
/// of device memory, of which a call takes ragged_shape() bytes. Expanded keys and values are
/// rounded to bf16. Bits follow the whole batch's lengths. Errors name the argument; then nothing
/// was launched.
Result<void> attend_ragged_on_device(const AttendArgs& args);

/// The work list of such calls (attn/attend.h, PrepareFn).
Result<void> prepare_ragged_on_device(const AttendArgs& args, Schedule& out);

}  // namespace lathe::cuda
