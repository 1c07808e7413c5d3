// Grouped-query attention on the CPU.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes what ref_attend_gqa (kernels/ref/attend_gqa.h) defines, in f32: gqa_bf16 and gqa_fp8
/// pools and compact rows of bf16 or f32, by page table or index list, every phase.
///
/// Bytes of a key are read once for all query rows and heads of a block (gqa_plan.h). Long contexts
/// are cut along the keys where there are fewer blocks than threads can share; with batch_invariant
/// partial states are folded at fixed places, and a row's bits depend neither on threads nor on the
/// batch nor on the row's chunk.
///
/// Errors: check_gqa_args (attn/check_args.h); head dims that are not multiples of 16 or exceed
/// 512. On an error nothing was written.
Result<void> cpu_attend_gqa(const AttendArgs& args);

/// How its calls are cut into tasks (gqa_plan.h).
Result<void> cpu_prepare_gqa(const AttendArgs& args, Schedule& schedule);

}  // namespace lathe
