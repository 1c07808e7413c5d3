// Grouped-query attention on Hopper as a kernel of the registry.
#pragma once

#include "attn/attend.h"

namespace lathe::cuda {

/// AttendArgs whose arrays lie on the device: q bf16, a pool of gqa_bf16 or gqa_fp8 by page table,
/// out bf16 or f32, lse f32. max_request_rows and max_kv_len are the host's bounds of q_indptr and
/// kv_lens. execution: a stream, and scratch of device memory. Bits follow the whole batch's
/// lengths. Can be captured. Errors name the argument; then nothing was launched.
Result<void> attend_gqa_on_device(const AttendArgs& args);

/// The work list of such calls (attn/attend.h, PrepareFn).
Result<void> prepare_gqa_on_device(const AttendArgs& args, Schedule& out);

}  // namespace lathe::cuda
