// Kind `gather` on the CPU: copies the keys that a batch needs to compact bf16 rows, then attends
// to those.
#pragma once

#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "kernels/cpu/latent/latent_plan.h"

namespace lathe {

/// Computes what cpu_attend_latent() does, over compact rows of qk_dim bf16 in `workspace`. It
/// works on as many requests (page tables) or rows of q (lists and windows) at a time as the
/// workspace can hold the keys of. A request of a page table that does not fit is gathered run by
/// run, and its states are folded in the order of its keys. Sources must be pools; two sources
/// become one. bf16 rows are exact for every layout with scales that are powers of two; with
/// execution.batch_invariant the bits are then the same as from cpu_attend_latent().
///
/// Scratch besides the workspace: index lists, 8 to 16 bytes per gathered row; and for a request in
/// runs, the states of as many of its rows as fit `state_bytes`, at least one. If not all its rows
/// fit, the keys are gathered again for the others.
///
/// Errors: the errors of cpu_attend_latent(); a source that is not a pool; a workspace too small
/// for the keys of one row (lists and windows), or for one request's keys or kGatherTileKeys
/// (plan/budget.h) of them, whichever is less. On an error nothing was written.
Result<void> cpu_gather_attend(const AttendArgs& args, std::span<std::uint16_t> workspace,
                               std::int64_t state_bytes = kLatentPartBytes);

}  // namespace lathe
