// Kind `gather` on the CPU, whole: copy the rows that a batch needs to bf16, then attend there.
#pragma once

#include <cstddef>
#include <span>

#include "attn/attend.h"

namespace lathe {

/// What cpu_attend_latent computes, by way of compact bf16 rows in `workspace`: as many requests at
/// a time (page tables: their cached tokens), or rows of q (lists and windows: their keys), as fit
/// it. Sources are pools; two sources become one. A bf16 row is exact for every layout whose scales
/// are powers of two; with execution.batch_invariant the bits are then those of cpu_attend_latent.
///
/// Takes at most 2 * qk_dim + 12 bytes for a key, and some for each row and request. Errors: those
/// of cpu_attend_latent; a source that isn't a pool; a workspace too small for one request or row,
/// which names the least that is enough for all of them. On an error nothing was written.
Result<void> cpu_gather_attend(const AttendArgs& args, std::span<std::byte> workspace);

}  // namespace lathe
