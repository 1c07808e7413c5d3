// GEMMs of activations with weights.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/linear.h"

namespace lathe {

/// Computes a list of GEMMs in one parallel region: the heads of a layer, its fused projections, or
/// the experts of a batch. Outputs must not overlap. A GEMM without rows is allowed.
///
/// A row's bits depend on that row and the weight alone, not on m, the list or the number of
/// threads. So a request's numbers depend neither on its batch nor on chunked prefill. (A device
/// may split K by the list, see Backend::matmul(); a layer's list is always the same.)
///
/// Precision f32: weights are widened to f32 exactly (e2m1: code x scale; e4m3: code x scale,
/// rounded once to f32); products and sums are f32.
/// Precision bf16: with bf16, e4m3 and e2m1 weights, x is rounded to bf16 (e4m3: x times the
/// block's scale). Sums stay f32. Each product has a relative error of 2^-9, and magnitudes below
/// 2^-126 count as zero.
/// Precision fp8 or fp8_pow2: with e4m3 weights, x is rounded to bf16 and then to e4m3, with one
/// scale per 128 consecutive elements of a row: an error of 3 to 4 % in each product, as in the
/// training of fp8 checkpoints.
///
/// Shapes and dtypes that contradict each other are bugs of the caller (LATHE_CHECK).
void matmul(const OpsContext& ops, std::span<const Product> products);
inline void matmul(const OpsContext& ops, const Product& product) {
  matmul(ops, std::span(&product, 1));
}

/// matmul() with both weights, then gated_activation(), without rounding in between.
void gated_matmul(const OpsContext& ops, const GatedProduct& op);

/// One GEMM per head, as in the absorbed projections of latent attention. Equals matmul() over
/// product_of() of each head; with precision fp8, x is rounded to bf16 only.
void head_matmul(const OpsContext& ops, const HeadProducts& op);

}  // namespace lathe
