// Absorbed latent attention on the CPU: dense, sparse, and V4's window plus compressed entries.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Computes in f32 what ref_attend_latent() (kernels/ref/attend_latent.h) defines. Keys are decoded
/// in place, tile by tile, once for all heads and rows that see them.
///
/// q: f32, bf16 or e4m3; out: f64, f32 or bf16; lse: f64 or f32. Pools of any latent layout, or
/// compact rows of bf16 or f32. The result's bits do not depend on the schedule. With
/// execution.batch_invariant they depend neither on threads, nor on the rest of the batch, nor on
/// how a prompt is cut into chunks. If decoding is exact in bf16 (scales are powers of two), rows
/// gathered as bf16 give the same bits as their pool.
///
/// Scratch: about 4 * (m_rows * (qk_dim + 2 v_dim + 64) + 64 * qk_dim) bytes per worker with up to
/// 64 M rows (rows x heads), and the states of parts that are separate tasks, up to
/// kLatentPartBytes (latent_plan.h). Nothing else is allocated.
///
/// Errors: check_latent_args() (attn/check_args.h); a per-tensor scale outside 2^-126 to 2^126. On
/// an error nothing was written.
Result<void> cpu_attend_latent(const AttendArgs& args);

/// Plans how its calls are cut into tasks (latent_plan.h).
Result<void> cpu_prepare_latent(const AttendArgs& args, Schedule& schedule);

}  // namespace lathe
