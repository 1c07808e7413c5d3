// Latent attention on Hopper as a kernel of the registry: one call with the arguments that all
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
/// max_request_rows and max_kv_len bound them; if a request has more rows, some stay unwritten.
///
/// The schedule and the partials of split rows lie in execution.scratch, a Scratch(kDeviceMemory)
/// that no other stream uses. Three launches, four where keys are cut, more where pages are decoded
/// first or batches are very large; nothing waits. Once the scratch has grown to a call's size that
/// call can be captured; a graph uses the scratch for as long as it lives.
///
/// With execution.batch_invariant, of calls of equal max_request_rows, a request's bits do not
/// depend on what is beside it. Partials then take up to kLatentFixedPieces x its M rows x 2 KiB a
/// request.
///
/// With args.schedule, as prepare_latent_on_device() made it, neither schedule nor cut is made
/// again.
///
/// Errors: those of check_latent_shapes and check_latent_call; impossible bounds; no scratch, or
/// host scratch; out of memory. On an error nothing was written.
Result<void> attend_latent_on_device(const AttendArgs& args);

/// Makes the schedule of a step's calls, whose lengths, bounds, table or list widths and dtypes
/// args has: two or three launches. At the addresses that `out` keeps, a graph of such calls reads
/// the schedule of the step that it is replayed for, as long as what the host bounds is the same.
Result<void> prepare_latent_on_device(const AttendArgs& args, Schedule& out);

/// The same call in a caller's memory of the device, at a multiple of 256; execution.scratch is not
/// used. part: as of attend_in_workspace(). Errors: those of attend_latent_on_device(); fewer bytes
/// than latent_workspace() of its args.
Result<void> attend_latent_in(const AttendArgs& args, std::span<std::byte> workspace,
                              CallPart part);
/// latent_workspace_bytes() of calls whose shapes are at most those of args. Errors: no device.
Result<std::int64_t> latent_workspace(const AttendArgs& args);

/// The first half of attend_latent_on_device(), for calls of attend_latent() with equal lengths: a
/// schedule that the stream fills, and a workspace, both in the scratch until its next take().
struct LatentCall {
  LatentSchedule schedule;
  std::span<std::byte> workspace;
};
Result<LatentCall> schedule_latent(const AttendArgs& args);

}  // namespace lathe::cuda
