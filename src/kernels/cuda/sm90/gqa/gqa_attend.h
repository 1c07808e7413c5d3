// Grouped-query attention on Hopper: entry points for the kernel registry.
#pragma once

#include <cstddef>
#include <span>

#include "attn/attend.h"
#include "attn/call_part.h"

namespace lathe::cuda {

/// Runs attention on device arrays: q bf16, a pool of gqa_bf16 or gqa_fp8, or for dense_latent
/// and sparse_latent problems of
/// kGqaLatents of mla_bf16; keys by page table, or latents by index lists; out bf16 or f32, lse
/// f32. max_request_rows and max_kv_len are the host's bounds of q_indptr and kv_lens. execution: a
/// stream and device scratch. An output's bits depend on the lengths of the whole batch. Can be
/// captured in a graph. Errors name the argument; nothing was launched then.
Result<void> attend_gqa_on_device(const AttendArgs& args);

/// Makes the work list of such a call (attn/attend.h, PrepareFn).
Result<void> prepare_gqa_on_device(const AttendArgs& args, Schedule& out);

/// attend_gqa_on_device() in the caller's device memory, aligned to 256; execution.scratch is not
/// used. part: as in attend_in_workspace(). Errors: the same; `workspace` is smaller than
/// gqa_workspace() of these args.
Result<void> attend_gqa_in(const AttendArgs& args, std::span<std::byte> workspace, CallPart part);
/// gqa_workspace_bytes() of calls whose shapes are at most the one of args. Errors: no device.
Result<std::int64_t> gqa_workspace(const AttendArgs& args);

}  // namespace lathe::cuda
