// Products with weights on Hopper's tensor cores.
//
// Codes of e4m3 and e2m1 become bf16 exactly, so weights are not rounded; a block's factor is
// applied to the sum over its 128 of K. Accumulators are f32.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "base/result.h"
#include "kernels/activation.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// out = x w^T + bias, or out += with `add`. All arrays lie on the device.
struct MatmulCall {
  RowsView x;                   // [m, k] bf16, or e4m3 with e4m3 weights
  WeightView w;                 // [n, k] bf16, e4m3 or e2m1
  MutableRowsView out;          // [m, n] f32 or bf16; apart from x
  const float* bias = nullptr;  // [n] or null
  bool add = false;             // with f32 out only
  // Not null: out = activation(gate, up), bf16, where w is the gate's and `up` the other one's, of
  // the same shape and dtype; bias is the gate's. Such a call has a launch of its own.
  const Activation* activation = nullptr;
  WeightView up = {};
  // Of e4m3 x (quantize_rows_on_device()): [ceil(k / 128), x_scale_stride], of block and row.
  const float* x_scales = nullptr;
  std::int64_t x_scale_stride = 0;  // a multiple of 4, >= m
};

/// Whether matmul_on_device() serves the call: dtypes; k a multiple of 8 elements of bf16 weights;
/// n even where out is bf16, a multiple of 8 with an activation; rows of x and weights at multiples
/// of 16 bytes, of out of 4.
bool matmul_takes(const MatmulCall& call);

/// How many calls a launch takes.
inline constexpr std::size_t kMatmulCalls = 6;

/// Puts one kernel on the stream for up to kMatmulCalls calls that share x (the same view) and the
/// dtype of weights. Nothing is allocated and nothing waits: it may be captured.
///
/// The kernel may start while the one ahead of it on the stream still runs, and reads weights and
/// scales at once: those must have been there before that one was put there.
///
/// The bits of a row of out depend on that row of x alone, whatever m is. Which calls share a
/// launch does change them: sums over K are split by the launch's sum of n and k.
///
/// Errors: a call that matmul_takes() refuses, too many calls, another x; CUDA's.
Result<void> matmul_on_device(std::span<const MatmulCall> calls, cudaStream_t stream);

/// Products of groups of tokens with a weight for each group: experts, or heads.
struct GroupedMatmulCall {
  RowsView x;               // [m, k] bf16, or of experts e4m3 with e4m3 weights
  WeightView w;             // [n, k] of the first group
  MutableRowsView out;      // [m, n] f32 or bf16; apart from x
  std::int64_t groups = 0;  // up to 512
  // Experts: group g has rows offsets[g] to offsets[g + 1] - 1 of x and out, any number of them.
  // Null, for heads: each group has all rows, of columns of its own.
  const std::int32_t* offsets = nullptr;  // [groups + 1] on the device, ascending up to m at most
  // Elements from a group to the next.
  std::int64_t weight_stride = 0;  // whole bytes
  std::int64_t scale_stride = 0;   // of w.scales or w.mx_scales
  std::int64_t x_stride = 0;       // of heads: columns
  std::int64_t out_stride = 0;     // of heads: columns
  const float* bias = nullptr;     // [groups, n] or null
  // Of gated experts, else null: out = activation(gate, up), bf16 and without `bias` of the up
  // projection where w is the gate's and `up` the other one's, of the same shape, dtype and
  // strides; where up has no data, w holds rows of both by turns, and out has n / 2 columns.
  const Activation* activation = nullptr;
  WeightView up = {};
  const float* x_scales = nullptr;  // of e4m3 x, as MatmulCall's
  std::int64_t x_scale_stride = 0;
};

bool grouped_matmul_takes(const GroupedMatmulCall& call);

/// As matmul_on_device(), and K is never split. Rows that no group has are not written. The work is
/// shared out on the device, by what offsets hold when the kernel runs.
Result<void> grouped_matmul_on_device(const GroupedMatmulCall& call, cudaStream_t stream);

}  // namespace lathe::cuda
