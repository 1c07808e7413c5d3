// Weights as a checkpoint stores them, and products with them: the arguments that every device's
// matmul takes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "base/enum.h"
#include "base/float_formats.h"
#include "base/rows_view.h"

namespace lathe {

/// Side of the square blocks that share a scale in block-scaled fp8 weights.
inline constexpr std::int64_t kWeightBlock = 128;

/// Neighbouring weights of a row that share a scale in MXFP4 (OCP Microscaling Formats, version 1.0).
inline constexpr std::int64_t kMxBlock = 32;

/// A weight of a linear layer, out features x in features, in the checkpoint's own format. Codes of
/// e4m3 are not NaN (0x7f, 0xff) and factors are below 2^119, so that kernels need not look for
/// either: who loads a checkpoint refuses others. So with MXFP4's scales: they are 2^118 at most.
struct WeightView {
  const std::byte* data = nullptr;  // [rows, cols] of dtype, dense
  DType dtype = DType::f32;         // f32, bf16, f16, e4m3 or e2m1 (MXFP4, the low nibble first)
  std::int64_t rows = 0;            // out features
  std::int64_t cols = 0;            // in features; whole blocks of kMxBlock where dtype is e2m1
  // [ceil(rows / kWeightBlock), ceil(cols / kWeightBlock)] factor of each block; null where the
  // dtype is not e4m3, and may be null where it is (all 1).
  const float* scales = nullptr;
  // [rows, cols / kMxBlock] scale of each block; null where the dtype is not e2m1. The code 0 (2^-127)
  // counts as 0.
  const ue8m0* mx_scales = nullptr;

  std::int64_t bytes() const {
    return bytes_of(dtype, rows * cols) + (dtype == DType::e2m1 ? rows * cols / kMxBlock : 0);
  }
};

// Of activations that are multiplied by bf16, e4m3 or e2m1 weights; sums are f32, and other weights are
// always multiplied in f32.
#define LATHE_MATMUL_PRECISIONS(X) \
  X(f32)                           \
  X(bf16) /* x is rounded to bf16 (nearest even), for the CPU's dot products of bf16 pairs */
LATHE_ENUM(MatmulPrecision, LATHE_MATMUL_PRECISIONS)

/// out = x w^T + bias, or out += with `add`.
struct Product {
  RowsView x;  // [m, w.cols] f32
  WeightView w;
  MutableRowsView out;          // [m, w.rows] f32; must not overlap x
  const float* bias = nullptr;  // [w.rows] or null
  bool add = false;
};

}  // namespace lathe
