// A part of a product: what one task of a matmul computes.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace lathe {

/// Elements of K between two sums over lanes; see matmul.h.
inline constexpr std::int64_t kDepthBlock = 1024;
/// Outputs that are computed together; a slice begins at a multiple of it, so that they lie in one
/// block of scales.
inline constexpr std::int64_t kPanelOuts = 8;
static_assert(kWeightBlock % kPanelOuts == 0 && kDepthBlock % kWeightBlock == 0);

/// Up to so many rows of x weights are read straight from their stored form.
inline constexpr std::int64_t kMostFewRows = 16;

struct MatmulSlice {
  const Product* product = nullptr;
  std::int64_t row = 0, rows = 0;  // of x
  std::int64_t out = 0, outs = 0;  // rows of the weight; `out` is a multiple of kPanelOuts
};

/// Floats of scratch that a slice needs.
std::int64_t matmul_slice_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth);

/// Computes the slice. scratch: [matmul_slice_scratch] at a multiple of 64 bytes.
void matmul_slice(const MatmulSlice& slice, float* scratch);

}  // namespace lathe
