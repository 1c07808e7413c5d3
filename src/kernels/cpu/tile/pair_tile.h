// Products over tiles of keys by dot products of bf16 pairs (AVX512_BF16), and how their operands
// are made. Call these only where cpu_has_bf16_dot() (kernels/cpu/matmul/matmul_bf16.h).
//
// A sum starts at 0, or at what is there, and takes its pairs in ascending order, one instruction
// each, which no blocking changes: so a row's bits do not depend on other rows. The instruction
// takes subnormal numbers as zeros and makes none; it rounds to nearest even.
#pragma once

#include <cstdint>

#include "kernels/linear.h"

namespace lathe {

/// c (+)= a b: a [rows, 2 pairs] of bf16, b [pairs, columns] of words of two bf16 (neighbours in k,
/// the lower in the low half), c [rows, columns] of f32; strides in elements.
struct PairProduct {
  const std::uint16_t* a;
  std::int64_t a_stride;
  const std::uint32_t* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  std::int64_t pairs;
  bool add;  // to what c holds; else c is overwritten
};

/// columns: a multiple of 16.
void pair_product(const PairProduct& p, std::int64_t rows, std::int64_t columns);

/// to[i] = from[i] rounded to bf16 (nearest even; NaN stays NaN). n: a multiple of 2.
void round_to_pairs(const float* from, std::int64_t n, std::uint16_t* to);

/// to[i] = the word of low[i] and high[i], rounded so. n: a multiple of 16.
void join_rows(const float* low, const float* high, std::int64_t n, std::uint32_t* to);

/// Row `row` of weights of e4m3, times their factors, rounded so.
void round_weight_row(const WeightView& w, std::int64_t row, std::uint16_t* to);

}  // namespace lathe
