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

/// Up to this many rows of x, weights are read straight from their stored form.
inline constexpr std::int64_t kMostFewRows = 16;

/// MXFP4 weights are widened in steps of 32-bit words, eight codes a word: one shift of all words
/// and one table give a vector of weights, and x is put in their order. So K is padded to whole
/// steps.
inline constexpr std::int64_t kMxStep = 128;  // of the widest vectors
static_assert(kDepthBlock % kMxStep == 0 && kMxStep % kMxBlock == 0);

/// Where MXFP4 weights begin: a pointer to elements, moved by whole blocks of kMxBlock.
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
  std::int64_t row = 0, rows = 0;  // of x
  std::int64_t out = 0, outs = 0;  // rows of the weight; `out` is a multiple of kPanelOuts
  // The slice that the thread probably computes after this one: of the same dtype, or null.
  const WeightView* next = nullptr;
  std::int64_t next_out = 0;
};

/// Floats of scratch that a slice needs.
std::int64_t matmul_slice_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth);

/// Computes the slice. scratch: [matmul_slice_scratch] at a multiple of 64 bytes.
void matmul_slice(const MatmulSlice& slice, float* scratch);

}  // namespace lathe
