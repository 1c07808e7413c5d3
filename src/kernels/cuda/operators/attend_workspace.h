// Attention in a caller's memory of the device: one call that allocates nothing, for the doors of
// other engines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "attn/call_part.h"

namespace lathe::cuda {

/// Bytes that are enough for every call of this problem whose rows, requests, bounds of lengths,
/// widths of tables and lists, and pools are at most those of `most`, of which no bytes are read.
/// They never fall as these grow. Errors: no device.
Result<std::int64_t> attend_workspace(const AttendArgs& most);

/// As the kernels of kinds inplace, native and gather do it (kernels/cuda/register.h), on
/// execution.stream, without execution.scratch. workspace: at a multiple of 256, of one stream at a
/// time; graphs keep its address. Errors: those of the kernels; fewer bytes than
/// attend_workspace(args).
///
/// part: schedule leaves the schedule in the workspace and reads neither q nor pools nor indices.
/// attention takes the one that lies there, of a call with the same problem, shapes, bounds and
/// lengths, and gives the bits of both.
Result<void> attend_in_workspace(const AttendArgs& args, std::span<std::byte> workspace,
                                 CallPart part = CallPart::both);

}  // namespace lathe::cuda
