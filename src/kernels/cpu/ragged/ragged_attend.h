// Latent attention on the CPU by expansion to per-head keys and values (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes what ref_attend_ragged (kernels/ref/attend_ragged.h) defines, on pools of any latent
/// layout. A head's keys are expanded kRaggedChunkKeys at a time (ragged_task.h), prefix and own
/// rows alike, and every chunk joins the rows' running softmax in ascending order; nothing of heads
/// x context x width is ever held.
///
/// In f32, from w_uk and w_uv; but where ragged_by_pairs() (ragged_task.h) from kv_b, and by dot
/// products of bf16 pairs: then q, latents, weights, expanded keys and values and softmax weights
/// are rounded to bf16 (nearest even). Sums and the softmax are f32 in either case.
///
/// A row's bits depend on its request alone, with or without batch_invariant: neither on threads
/// nor on the chunk that brings the row.
///
/// Errors: check_ragged_args (attn/check_args.h); on an error nothing was written.
Result<void> cpu_attend_ragged(const AttendArgs& args);

}  // namespace lathe
