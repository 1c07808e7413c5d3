// GEMM with weights on Hopper's tensor cores.
//
// e4m3 and e2m1 codes convert to bf16 exactly, so weights are not rounded. A block's scale is
// applied to the sum over its 128 elements of K, the factor of an NVFP4 tensor to the sum over K.
// u4 weights are rounded to bf16 from (code - zero) scale. Accumulators are f32.
//
// Weights of 4 bits and their scales must be packed (pack/packed_weights.h), as prepare() stores
// them.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "base/result.h"
#include "kernels/activation.h"
#include "kernels/limits.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// out = x w^T + bias, or out += with `add`. All arrays are on the device.
struct MatmulCall {
  RowsView x;                   // [m, k] bf16, or e4m3 with e4m3 weights
  WeightView w;                 // [n, k] bf16, e4m3, e2m1 (MXFP4 or NVFP4) or u4
  MutableRowsView out;          // [m, n] f32 or bf16; must not overlap x
  const float* bias = nullptr;  // [n], or null
  bool add = false;             // only with f32 out
  // Not null: out = activation(gate, up) in bf16. `w` is the gate and `up` the other weight, with
  // the same shape and format; `bias` is the gate's. Such a call has its own launch.
  const Activation* activation = nullptr;
  WeightView up = {};
  // Scales of e4m3 x (quantize_rows_on_device()): [ceil(k / 128), x_scale_stride], by block and
  // row.
  const float* x_scales = nullptr;
  std::int64_t x_scale_stride = 0;  // a multiple of 4, >= m
  // Of a launch's first call: matmul_kept_bytes() of the device's memory that no other kernel on
  // the stream needs to find again, or null. With it many tokens are faster where K has parts; the
  // bits are the same.
  float* kept = nullptr;
  // With `kept`: a count for each SM of the device, all 0 before and after the launch, or null.
  // With it K's parts are computed at the same time where few tiles have many tokens; the bits are
  // the same.
  std::uint32_t* arrivals = nullptr;
};

/// Bytes of MatmulCall::kept: a tile's sums on each SM.
std::int64_t matmul_kept_bytes(int sms);

/// Whether two weights are stored alike, so that one launch can read both: their dtype, and the
/// kind of their scales.
bool same_format(const WeightView& a, const WeightView& b);

/// Whether matmul_on_device() supports the call: dtypes; k a multiple of 8 for bf16 weights; n even
/// for bf16 out, a multiple of 8 with an activation; rows of x and weights aligned to 16 bytes, of
/// out to 4; no order of columns (WeightView::columns), for which the caller permutes x.
bool matmul_takes(const MatmulCall& call);

/// Most calls of a launch.
inline constexpr std::size_t kMatmulCalls = 6;

/// Launches one kernel for up to kMatmulCalls calls that share x (the same view) and the weights'
/// format. Neither allocates nor waits, so it may be captured.
///
/// The kernel may start while the previous one on the stream still runs, and it reads weights and
/// scales at once. So they must have been written before that previous kernel was launched.
///
/// The bits of a row of out depend only on that row of x, whatever m is. They do depend on which
/// calls share a launch: the split of K is chosen by the launch's total of n, and by k.
///
/// Errors: a call that matmul_takes() rejects; too many calls; different x; CUDA errors.
Result<void> matmul_on_device(std::span<const MatmulCall> calls, cudaStream_t stream);

/// Parts in which matmul_on_device() sums K for up to 64 rows of x. Errors: a CUDA error.
Result<int> matmul_parts(std::span<const MatmulCall> calls);

/// A dense GEMM in the launch of a grouped one, with an x of its own: the experts that all rows
/// have. A launch less is about 4 us where rows are few. The bits are as with matmul_on_device().
struct DenseCall {
  // Gated, if the grouped GEMM is. Otherwise out is f32 [m, n], the sums over the first part of K;
  // the sums of each other part of matmul_parts() follow, m * out.row_stride elements after the
  // part before it. The caller adds them in order.
  MatmulCall call;
  // Gated: row t of out in bf16 is multiplied by sigmoid(factor[t * factor_stride]) and rounded
  // again; null: it is not.
  const float* factor = nullptr;
  std::int64_t factor_stride = 0;
};

/// Grouped GEMM: each group of tokens (an expert's tokens, or a head) has its own weight.
struct GroupedMatmulCall {
  RowsView x;               // [m, k] bf16; for experts also e4m3, with e4m3 weights
  WeightView w;             // [n, k] of the first group
  MutableRowsView out;      // [m, n] f32 or bf16; must not overlap x
  std::int64_t groups = 0;  // at most 512
  // For experts: group g has rows offsets[g] to offsets[g + 1] - 1 of x and out; any number of
  // rows. Null, for heads: every group has all rows, and its own columns.
  const std::int32_t* offsets = nullptr;  // [groups + 1] on the device, ascending, at most m
  // Offsets were there when another grouped GEMM with them began, which this one follows. Weights
  // of the first tiles are then loaded before the launch before this one has ended.
  bool offsets_known = false;
  // Elements from one group to the next.
  std::int64_t weight_stride = 0;  // a whole number of bytes
  std::int64_t scale_stride = 0;   // of w.scales; packed scales are contiguous
  std::int64_t x_stride = 0;       // for heads: columns
  std::int64_t out_stride = 0;     // for heads: columns
  const float* bias = nullptr;     // [groups, n], or null
  // For gated experts, otherwise null: out = activation(gate, up) in bf16. `w` is the gate and `up`
  // the other weight, with the same shape, dtype and strides; `up` has no bias. If `up` has no
  // data, `w` has the rows of both, interleaved, and out has n / 2 columns.
  const Activation* activation = nullptr;
  WeightView up = {};
  const float* x_scales = nullptr;  // of e4m3 x, as MatmulCall::x_scales
  std::int64_t x_scale_stride = 0;
  // For experts: a GEMM in the same launch, or null. It has at most kDenseTokens tokens, the
  // weights' format and the type of x, no packed weights, and as a gated one the same activation.
  const DenseCall* dense = nullptr;
};

/// Whether grouped_matmul_on_device() supports the call: what matmul_takes() says of a group,
/// groups that begin at multiples of 16 bytes, and the dense GEMM if there is one.
bool grouped_matmul_takes(const GroupedMatmulCall& call);

/// As matmul_on_device(), but K is never split. Rows that belong to no group are not written. The
/// kernel distributes the work itself, from the offsets at the time it runs.
Result<void> grouped_matmul_on_device(const GroupedMatmulCall& call, cudaStream_t stream);

}  // namespace lathe::cuda
