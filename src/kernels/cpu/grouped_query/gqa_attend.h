// Grouped-query attention on the CPU.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes in f32 what ref_attend_gqa() (kernels/ref/attend_gqa.h) defines. Keys are in gqa_bf16
/// or gqa_fp8 pools or in compact rows of bf16 or f32, by page table or index list, in every phase.
///
/// A key's bytes are read once for all query rows and heads of a block (gqa_plan.h). If there are
/// too few blocks for the threads, long contexts are split along the keys. With batch_invariant,
/// partial states are folded at fixed keys: a row's bits depend neither on threads, nor on the
/// batch, nor on how the prompt is cut into chunks.
///
/// Errors: check_gqa_args() (attn/check_args.h); head dims that are not multiples of 16 or exceed
/// 512. On an error nothing was written.
Result<void> cpu_attend_gqa(const AttendArgs& args);

/// Plans how its calls are cut into tasks (gqa_plan.h).
Result<void> cpu_prepare_gqa(const AttendArgs& args, Schedule& schedule);

}  // namespace lathe
