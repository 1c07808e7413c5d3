// Latent attention on Hopper: entry points for the kernel registry, with the arguments that all
// devices share. A step whose layers share a schedule calls latent.h itself.
#pragma once

#include <cstddef>
#include <span>

#include "attn/call_part.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "step/schedule.h"

namespace lathe::cuda {

/// Computes what cpu_attend_latent does, in bf16 arithmetic (latent.h), on execution.stream. All
/// spans and views point to the stream's device. The host cannot read lengths there, so
/// max_request_rows and max_kv_len bound them; rows of a request beyond the bound are not written.
///
/// Schedule and partials are in execution.scratch, a Scratch(kDeviceMemory) that no other stream
/// uses. Launches three kernels, four where keys are split, more where pages are staged or batches
/// are very large; never waits. Once the scratch has grown to a call's size, the call can be
/// captured; the graph uses the scratch for as long as it exists.
///
/// With execution.batch_invariant, a request's bits do not depend on the rest of its batch, for
/// calls with the same max_request_rows. Partials then need up to kLatentFixedPieces x the
/// request's M rows x 2 KiB.
///
/// With args.schedule, made by prepare_latent_on_device(), neither schedule nor cut is computed.
///
/// Errors: as check_latent_shapes() and check_latent_call(); impossible bounds; no scratch, or host
/// scratch; out of memory. On an error nothing was written.
Result<void> attend_latent_on_device(const AttendArgs& args);

/// Makes the schedule for a step's calls with the lengths, bounds, table or list widths and dtypes
/// of args: two or three launches. A graph of such calls, at the addresses that `out` keeps, reads
/// the schedule of the step it is replayed for, as long as the host's bounds are the same.
Result<void> prepare_latent_on_device(const AttendArgs& args, Schedule& out);

/// The same call in the caller's device memory, aligned to 256; execution.scratch is not used.
/// part: as in attend_in_workspace(). Errors: as attend_latent_on_device(); `workspace` is smaller
/// than latent_workspace() of these args.
Result<void> attend_latent_in(const AttendArgs& args, std::span<std::byte> workspace,
                              CallPart part);
/// latent_workspace_bytes() of calls with shapes up to the one of args. Errors: no device.
Result<std::int64_t> latent_workspace(const AttendArgs& args);

/// The first half of attend_latent_on_device(), for calls of attend_latent() with equal lengths: a
/// schedule that the stream fills, and a workspace. Both are in the scratch until its next take().
struct LatentCall {
  LatentSchedule schedule;
  std::span<std::byte> workspace;
};
Result<LatentCall> schedule_latent(const AttendArgs& args);

}  // namespace lathe::cuda
