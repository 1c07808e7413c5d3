// A slice of a GEMM: the part that one task computes.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace lathe {

/// Elements of K after which the lanes are summed; see matmul.h.
inline constexpr std::int64_t kDepthBlock = 1024;
/// Outputs that are computed together. A slice begins at a multiple of it, so that they share a
/// block of scales.
inline constexpr std::int64_t kPanelOuts = 8;
static_assert(kWeightBlock % kPanelOuts == 0 && kDepthBlock % kWeightBlock == 0);

/// Up to this many rows of x, weights are widened in registers and not stored to panels.
inline constexpr std::int64_t kMostFewRows = 16;

/// MXFP4 weights are widened in steps of a vector of 32-bit words, eight codes per word: one shift
/// of all words and one table lookup give a vector of weights, and x is packed in the same order.
/// So K is padded to whole steps.
inline constexpr std::int64_t kMxStep = 128;  // with the widest vectors
static_assert(kDepthBlock % kMxStep == 0 && kMxStep % kMxBlock == 0);

/// A pointer to MXFP4 weights and their scales; moves by whole blocks of kMxBlock elements.
struct MxAt {
  const std::uint8_t* codes;
  const std::uint8_t* scales;
  constexpr MxAt operator+(std::int64_t k) const { return {codes + (k >> 1), scales + (k >> 5)}; }
  constexpr MxAt& operator+=(std::int64_t k) { return *this = *this + k; }
};
inline MxAt mx_at(const WeightView& w) {
  return {reinterpret_cast<const std::uint8_t*>(w.data), &w.mx_scales->bits};
}

struct MatmulSlice {
  const Product* product = nullptr;
  std::int64_t row = 0, rows = 0;  // first row of x, and number of rows
  std::int64_t out = 0, outs = 0;  // first row of the weight (a multiple of kPanelOuts), and number
  // The weight of the slice that this thread probably computes next, for prefetching; of the same
  // dtype, or null.
  const WeightView* next = nullptr;
  std::int64_t next_out = 0;
};

/// Floats of scratch that a slice needs.
std::int64_t matmul_slice_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth);

/// Computes the slice. scratch: [matmul_slice_scratch()], aligned to 64 bytes.
void matmul_slice(const MatmulSlice& slice, float* scratch);

}  // namespace lathe
