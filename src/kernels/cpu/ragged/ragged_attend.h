// Latent attention on the CPU by expansion to per-head keys and values (kind `ragged`).
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes in f32 what ref_attend_ragged() (kernels/ref/attend_ragged.h) defines, on pools of any
/// latent layout. A head's keys, cached prefix and new rows alike, are expanded kRaggedChunkKeys at
/// a time (ragged_task.h), and the chunks are added to the rows' running softmax in ascending
/// order. So no buffer has the size heads x context x width.
///
/// A row's bits depend on its request alone, with or without batch_invariant: neither on threads
/// nor on how the prompt is cut into chunks.
///
/// Errors: check_ragged_args() (attn/check_args.h); on an error nothing was written.
Result<void> cpu_attend_ragged(const AttendArgs& args);

}  // namespace lathe
