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

/// A pointer to u4 or NVFP4 weights; moves by whole 32-bit words of eight codes.
struct GroupAt {
  const std::uint8_t* codes;
  const GroupScales* groups;
  std::int64_t element;  // its number in the matrix
  GroupAt operator+(std::int64_t k) const { return {codes + (k >> 1), groups, element + k}; }
  GroupAt& operator+=(std::int64_t k) { return *this = *this + k; }
};
inline GroupAt group_at(const WeightView& w) {
  return {reinterpret_cast<const std::uint8_t*>(w.data), &w.groups, 0};
}

/// The value of an e4m3 code that is not NaN.
inline float e4m3_value(std::uint8_t code) {
  // An e4m3 code at the place of an f32's exponent and mantissa is its value x 2^-120.
  const std::uint32_t bits = (std::uint32_t{code} & 0x80u) << 24 | (std::uint32_t{code} & 0x7fu)
                                                                       << 20;
  return __builtin_bit_cast(float, bits) * 0x1p120f;
}
/// The scale of group i of u4 weights.
inline float u4_scale(const GroupScales& g, std::int64_t i) {
  std::uint16_t bits;
  __builtin_memcpy(&bits, g.data + 2 * i, sizeof(bits));
  return g.dtype == DType::f16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
}

/// Whether sums are multiplied by factor_of() when they are stored.
inline bool has_factors(const WeightView& w) {
  return w.scales != nullptr && (w.scale_rows || w.dtype == DType::e2m1);
}
/// The factor of output `out`. Precondition: has_factors().
inline float factor_of(const WeightView& w, std::int64_t out) {
  return w.scales[w.scale_rows ? out : 0];
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
