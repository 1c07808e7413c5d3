// Attention in the caller's device memory, without allocations: the entry for other engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "attn/call_part.h"

namespace lathe::cuda {

/// Workspace bytes for every call of this problem that is nowhere larger than `most`: in rows,
/// requests, length bounds, widths of tables and lists, and pools. Reads only the shapes of `most`,
/// not its data. Grows monotonically with each of them. Errors: no device.
Result<std::int64_t> attend_workspace(const AttendArgs& most);

/// Runs the kernels of kinds inplace, native and gather (kernels/cuda/register.h) on
/// execution.stream, without execution.scratch. workspace: aligned to 256; only one stream may use
/// it at a time; captured graphs keep its address. Errors: of the kernels; fewer bytes than
/// attend_workspace(args).
///
/// part: `schedule` writes the schedule to the workspace and reads neither q nor pools nor indices.
/// `attention` uses a schedule that is already there, made with the same problem, shapes, bounds
/// and lengths, and gives the same bits as `both`.
Result<void> attend_in_workspace(const AttendArgs& args, std::span<std::byte> workspace,
                                 CallPart part = CallPart::both);

}  // namespace lathe::cuda
