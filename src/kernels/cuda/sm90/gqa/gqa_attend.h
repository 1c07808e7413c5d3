// Grouped-query attention on Hopper as a kernel of the registry.
#pragma once

#include <cstddef>
#include <span>

#include "attn/attend.h"
#include "attn/call_part.h"

namespace lathe::cuda {

/// AttendArgs whose arrays lie on the device: q bf16, a pool of gqa_bf16 or gqa_fp8 by page table,
/// out bf16 or f32, lse f32. max_request_rows and max_kv_len are the host's bounds of q_indptr and
/// kv_lens. execution: a stream, and scratch of device memory. Bits follow the whole batch's
/// lengths. Can be captured. Errors name the argument; then nothing was launched.
Result<void> attend_gqa_on_device(const AttendArgs& args);

/// The work list of such calls (attn/attend.h, PrepareFn).
Result<void> prepare_gqa_on_device(const AttendArgs& args, Schedule& out);

/// attend_gqa_on_device() in a caller's memory of the device, at a multiple of 256;
/// execution.scratch is not used. part: as of attend_in_workspace(). Errors: the same; fewer bytes
/// than gqa_workspace() of its args.
Result<void> attend_gqa_in(const AttendArgs& args, std::span<std::byte> workspace, CallPart part);
/// gqa_workspace_bytes() of calls whose shapes are at most those of args. Errors: no device.
Result<std::int64_t> gqa_workspace(const AttendArgs& args);

}  // namespace lathe::cuda
