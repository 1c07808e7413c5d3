// Kind `gather` on the CPU: copies the rows that a batch needs to bf16, then attends there.
#pragma once

#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "kernels/cpu/latent/latent_plan.h"

namespace lathe {

/// Computes what cpu_attend_latent does, over compact rows of qk_dim bf16 in `workspace`: as many
/// requests at a time (page tables: their cached tokens), or rows of q (lists and windows: their
/// keys), as fit it. A request of a page table that does not fit is gathered run by run and its
/// states are folded in the order of its keys. Sources are pools; two sources become one. A bf16
/// row is exact for every layout whose scales are powers of two; with execution.batch_invariant the
/// bits are then those of cpu_attend_latent.
///
/// Besides the workspace a call takes index lists from execution.scratch, 8 to 16 bytes for a
/// gathered row, and, for a request in runs, the states of as many of its rows as `state_bytes`
/// hold, one at least; more rows gather the keys again.
///
/// Errors: those of cpu_attend_latent; a source that isn't a pool; a workspace that holds neither
/// the keys of a row (lists and windows) nor a request's or kGatherTileKeys of them
/// (plan/budget.h). On an error nothing was written.
Result<void> cpu_gather_attend(const AttendArgs& args, std::span<std::uint16_t> workspace,
                               std::int64_t state_bytes = kLatentPartBytes);

}  // namespace lathe
