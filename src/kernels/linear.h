// Weights in the checkpoint's own formats, and the arguments of GEMMs with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/enum.h"
#include "base/float_formats.h"
#include "base/rows.h"
#include "kernels/activation.h"

namespace lathe {

/// Side of the square blocks that share a scale in block-scaled fp8 weights.
inline constexpr std::int64_t kWeightBlock = 128;

/// Blocks along a side of `n` rows or columns; the last may be partial.
constexpr std::int64_t weight_blocks(std::int64_t n) {
  return (n + kWeightBlock - 1) / kWeightBlock;
}

/// Consecutive weights of a row that share a scale in MXFP4 (OCP Microscaling Formats, version
/// 1.0).
inline constexpr std::int64_t kMxBlock = 32;

/// The weight of a linear layer, out features x in features, in the checkpoint's own format.
/// Kernels do not check for bad numbers, so the loader does: it rejects NaN codes of e4m3 (0x7f,
/// 0xff), e4m3 block scales of 2^119 or more, and MXFP4 scales above 2^118.
struct WeightView {
  const std::byte* data = nullptr;  // [rows, cols] of dtype, dense
  DType dtype = DType::f32;         // f32, bf16, f16, e4m3 or e2m1 (MXFP4, the low nibble first)
  std::int64_t rows = 0;            // out features
  std::int64_t cols = 0;            // in features; whole blocks of kMxBlock where dtype is e2m1
  // [ceil(rows / kWeightBlock), ceil(cols / kWeightBlock)] the blocks' scales; null if the dtype is
  // not e4m3, and may be null for e4m3: all scales are 1.
  const float* scales = nullptr;
  // [rows, cols / kMxBlock] the blocks' scales; null if the dtype is not e2m1. The code 0 (2^-127)
  // counts as 0.
  const ue8m0* mx_scales = nullptr;

  std::int64_t bytes() const {
    return bytes_of(dtype, rows * cols) + (dtype == DType::e2m1 ? rows * cols / kMxBlock : 0);
  }
};

/// Several weights of one shape and dtype: a layer's experts, or the heads of a projection.
struct WeightStack {
  DType dtype = DType::f32;
  std::int64_t rows = 0;                // out features of each
  std::int64_t cols = 0;                // in features of each
  std::vector<const std::byte*> data;   // [count] each as WeightView::data
  std::vector<const float*> scales;     // [count] each as WeightView::scales
  std::vector<const ue8m0*> mx_scales;  // [count] each as WeightView::mx_scales

  std::int64_t count() const { return std::ssize(data); }
  WeightView at(std::int64_t i) const {
    const auto k = static_cast<std::size_t>(i);
    return {data[k], dtype, rows, cols, scales[k], mx_scales[k]};
  }
  void set(std::int64_t i, const WeightView& w) {
    const auto k = static_cast<std::size_t>(i);
    data[k] = w.data;
    scales[k] = w.scales;
    mx_scales[k] = w.mx_scales;
  }
  std::int64_t bytes() const { return count() == 0 ? 0 : count() * at(0).bytes(); }
  static WeightStack of(std::int64_t count, DType dtype, std::int64_t rows, std::int64_t cols) {
    const auto n = static_cast<std::size_t>(count);
    WeightStack out{dtype, rows, cols, {}, {}, {}};
    out.data.resize(n);
    out.scales.resize(n);
    out.mx_scales.resize(n);
    return out;
  }
};

// How a GEMM rounds its activations x when weights are bf16, e4m3 or e2m1. Sums are always f32.
// With f32 and f16 weights, x is never rounded.
#define LATHE_MATMUL_PRECISIONS(X)                                                      \
  X(f32)                                                                                \
  X(bf16)     /* x is rounded to bf16 (nearest even) */                                 \
  X(fp8)      /* as bf16; with e4m3 weights also to e4m3, one scale per 128 elements */ \
  X(fp8_pow2) /* as fp8, with scales that are powers of two */
LATHE_ENUM(MatmulPrecision, LATHE_MATMUL_PRECISIONS)

/// Whether GEMMs with weights of this dtype round x to e4m3.
constexpr bool rounds_to_e4m3(MatmulPrecision p, DType weights) {
  return weights == DType::e4m3 && (p == MatmulPrecision::fp8 || p == MatmulPrecision::fp8_pow2);
}

/// One GEMM: out = x w^T + bias, or out += x w^T + bias if `add`.
struct Product {
  RowsView x;  // [m, w.cols] f32 or Backend::activations()
  WeightView w;
  MutableRowsView out;          // [m, w.rows] f32 or Backend::activations(); must not overlap x
  const float* bias = nullptr;  // [w.rows] or null
  bool add = false;
};

/// out = activation(x gate^T, x up^T).
struct GatedProduct {
  RowsView x;           // [m, gate.cols] f32 or Backend::activations()
  WeightView gate, up;  // of one shape and dtype
  Activation activation;
  MutableRowsView out;  // [m, gate.rows] f32 or Backend::activations(); must not overlap x
};

/// out[t, h] = x[t, h] w[h]^T for every head h of a row.
struct HeadProducts {
  RowsView x;                      // [m, >= w.count() * x_stride]; the first w.cols of a head count
  std::int64_t x_stride = 0;       // elements between heads of x
  const WeightStack* w = nullptr;  // [heads]
  MutableRowsView out;             // [m, >= w.count() * out_stride]; w.rows of a head are written
  std::int64_t out_stride = 0;     // elements between heads of out
};
inline Product product_of(const HeadProducts& p, std::int64_t head) {
  return {cols_at(p.x, head * p.x_stride, p.w->cols), p.w->at(head),
          cols_at(p.out, head * p.out_stride, p.w->rows)};
}

}  // namespace lathe
