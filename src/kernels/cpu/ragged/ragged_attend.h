// Latent attention on the CPU by expansion to per-head keys and values (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes what ref_attend_ragged (kernels/ref/attend_ragged.h) defines, in f32, on pools of any
/// latent layout. A head's keys are expanded kRaggedChunkKeys at a time (ragged_task.h), prefix and
/// own rows alike, and every chunk joins the rows' running softmax in ascending order; nothing of
/// heads x context x width is ever held.
///
/// A row's bits depend on its request alone, with or without batch_invariant: neither on threads
/// nor on the chunk that brings the row.
///
/// Errors: check_ragged_args (attn/check_args.h); on an error nothing was written.
Result<void> cpu_attend_ragged(const AttendArgs& args);

}  // namespace lathe
