// Prepares index queries: optional Hadamard rotation, quantisation per (row, head), and folding the
// scales into the heads' weights.
#pragma once

#include <cstdint>
#include <span>

#include "base/execution.h"
#include "base/float_formats.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/layout.h"

namespace lathe {

struct IndexQuantize {
  RowsView q;        // [rows, heads * dim] f32 or bf16, already rotated by RoPE
  RowsView weights;  // [rows, heads] f32 or bf16
  std::int32_t heads = 0;
  std::int32_t dim = 0;                         // a multiple of 16; with hadamard a power of two
  bool hadamard = false;                        // must match the cached keys
  ScalePolicy policy = ScalePolicy::pow2_ceil;  // or raw_f32

  std::span<e4m3> codes;    // [rows, heads, dim]
  std::span<float> scales;  // [rows, heads], or empty
  std::span<float> folded;  // [rows, heads] w * heads^-0.5 * dim^-0.5 * scale
  Execution execution;
};

/// Quantises as layout/codec/codec.h does for index_fp8: the scale is that of the largest finite
/// magnitude, at least 1e-4, and codes are to_e4m3(x * (1 / scale)). The Hadamard rotation is f32,
/// whatever q's dtype. Errors, with nothing written: dtypes and counts that contradict each other;
/// another policy; another dim than stated above.
Result<void> index_quantize_q(const IndexQuantize& args);

/// x <- H x * dim^-0.5 in place for each run of `dim` elements, with H the Sylvester-Hadamard
/// matrix (so the factor is orthonormal). rows: [rows, n * dim] f32 or bf16 (computed in f32,
/// rounded once). For index keys, call apply_rope(), hadamard_rows(), then encode_rows() into the
/// index pool. Errors: another dtype; a dim that is not a power of two or does not divide the
/// columns.
Result<void> hadamard_rows(const MutableRowsView& rows, std::int32_t dim);

}  // namespace lathe
