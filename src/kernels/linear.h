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

/// Consecutive weights of a row that share a scale in NVFP4.
inline constexpr std::int64_t kNvBlock = 16;

/// Scales of groups of `size` consecutive weights of a row.
///
/// u4 (int4, from compressed-tensors, AWQ and GPTQ checkpoints):
///   w[r, c] = (code[r, c] - zero[r, c / size]) * scale[r, c / size]
/// Codes are as compressed-tensors packs them: row after row, and column c of a row is in byte
/// c / 2, an even column in the low nibble. So 16 bytes are the 32 columns of one scale, and a
/// little-endian 32-bit word is columns 8 j to 8 j + 7 from its low nibble up: (word >> 4 i) &
/// 0x000f000f are columns 8 j + i and 8 j + i + 4 in the low bits of two halves. With 0x4300 set in
/// each half they are 128 + code in bf16, and subtracting 128 + zero is exact.
/// w is rounded to f32; kernels that multiply by bf16 pairs then round that to bf16.
///
/// e2m1 (NVFP4): w[r, c] = code[r, c] * scale[r, c / 16] * scales[0] (WeightView::scales), codes in
/// the same order. Code times scale is exact in bf16.
struct GroupScales {
  const std::byte* data = nullptr;  // [rows, cols / size] of dtype; null: the weight has none
  DType dtype = DType::bf16;        // u4: bf16 or f16; e2m1: e4m3
  std::int32_t size = 0;            // u4: 32, 64 or 128; e2m1: kNvBlock
  // u4: [rows, cols / size] the codes that stand for 0, each 0 to 16; null: all are kU4Zero.
  const std::uint8_t* zeros = nullptr;

  GroupScales row(std::int64_t r, std::int64_t cols) const {
    if (data == nullptr) return {};
    const std::int64_t first = r * (cols / size);
    return {data + bytes_of(dtype, first), dtype, size, zeros == nullptr ? nullptr : zeros + first};
  }
};
inline constexpr std::uint8_t kU4Zero = 8;

/// The weight of a linear layer, out features x in features, in the checkpoint's own format.
/// Kernels do not check for bad numbers, so the loader does: it rejects NaN codes of e4m3 (0x7f,
/// 0xff), scales that are not finite or are 2^119 or more, and MXFP4 scales above 2^118.
struct WeightView {
  const std::byte* data = nullptr;  // [rows, cols] of dtype, dense
  // f32, bf16, f16, e4m3, u4, or e2m1 (MXFP4 and NVFP4); of the last two the low nibble is first.
  DType dtype = DType::f32;
  std::int64_t rows = 0;  // out features
  std::int64_t cols = 0;  // in features; whole groups where dtype is u4 or e2m1
  // e4m3: [ceil(rows / kWeightBlock), ceil(cols / kWeightBlock)] the blocks' scales, or [rows] with
  // scale_rows; null: all scales are 1. NVFP4: [1]. Null for other dtypes.
  const float* scales = nullptr;
  // [rows, cols / kMxBlock] the blocks' scales of MXFP4, otherwise null. The code 0 (2^-127) counts
  // as 0.
  const ue8m0* mx_scales = nullptr;
  bool scale_rows = false;  // e4m3: each row has one scale
  GroupScales groups = {};  // u4 and NVFP4
  // [cols] a permutation, or null: column k of `data` multiplies column columns[k] of x (GPTQ's act
  // order, whose columns are sorted by group).
  const std::int32_t* columns = nullptr;

  /// Elements of `scales`.
  std::int64_t scale_count() const {
    if (dtype == DType::e2m1) return 1;
    return scale_rows ? rows : weight_blocks(rows) * weight_blocks(cols);
  }
  /// Bytes that a GEMM reads.
  std::int64_t bytes() const {
    std::int64_t out = bytes_of(dtype, rows * cols);
    if (mx_scales != nullptr) out += rows * cols / kMxBlock;
    if (groups.size == 0) return out;
    const std::int64_t count = rows * (cols / groups.size);
    return out + bytes_of(groups.dtype, count) + (groups.zeros == nullptr ? 0 : count);
  }
};

/// Several weights of one shape, dtype and kind of scales: a layer's experts, or the heads of a
/// projection.
struct WeightStack {
  DType dtype = DType::f32;
  std::int64_t rows = 0;                // out features of each
  std::int64_t cols = 0;                // in features of each
  std::vector<const std::byte*> data;   // [count] each as WeightView::data
  std::vector<const float*> scales;     // [count] each as WeightView::scales
  std::vector<const ue8m0*> mx_scales;  // [count] each as WeightView::mx_scales
  bool scale_rows = false;
  std::vector<GroupScales> groups;           // [count] each as WeightView::groups
  std::vector<const std::int32_t*> columns;  // [count] each as WeightView::columns

  std::int64_t count() const { return std::ssize(data); }
  WeightView at(std::int64_t i) const {
    const auto k = static_cast<std::size_t>(i);
    return {data[k], dtype, rows, cols, scales[k], mx_scales[k], scale_rows, groups[k], columns[k]};
  }
  /// The stack keeps its dtype, which the weight's must be.
  void set(std::int64_t i, const WeightView& w) {
    const auto k = static_cast<std::size_t>(i);
    data[k] = w.data;
    scales[k] = w.scales;
    mx_scales[k] = w.mx_scales;
    scale_rows = w.scale_rows;
    groups[k] = w.groups;
    columns[k] = w.columns;
  }
  std::int64_t bytes() const { return count() == 0 ? 0 : count() * at(0).bytes(); }
  static WeightStack of(std::int64_t count, DType dtype, std::int64_t rows, std::int64_t cols) {
    const auto n = static_cast<std::size_t>(count);
    WeightStack out{dtype, rows, cols, {}, {}, {}, false, {}, {}};
    out.data.resize(n);
    out.scales.resize(n);
    out.mx_scales.resize(n);
    out.groups.resize(n);
    out.columns.resize(n);
    return out;
  }
};

// How a GEMM rounds its activations x when weights are bf16, e4m3, u4 or e2m1. Sums are always f32.
// With f32 and f16 weights, x is never rounded.
#define LATHE_MATMUL_PRECISIONS(X)                                                      \
  X(f32)                                                                                \
  X(bf16)     /* x is rounded to bf16 (nearest even) */                                 \
  X(fp8)      /* as bf16; with e4m3 weights also to e4m3, one scale per 128 elements */ \
  X(fp8_pow2) /* as fp8, with scales that are powers of two */                          \
  X(int8)     /* as bf16; with u4 and e4m3 weights to 8-bit integers, one scale per group */
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
  // Shares no launch with its neighbours, and so leaves their bits alone: for a GEMM that only some
  // steps need. Unlike one in a call of its own it shares what is made of x, as its codes.
  bool alone = false;
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
