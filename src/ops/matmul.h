// Products of activations with weights, device-neutral.
#pragma once

#include <span>

#include "kernels/context.h"
#include "kernels/linear.h"

namespace lathe {

/// All products, in one parallel region: the heads of a layer, its fused projections, or the
/// experts of a batch are a list. Outputs must not overlap. Products without rows are legal.
///
/// A row's bits depend on that row and the weight alone: neither on m, nor on the other products of
/// the list, nor on threads. So a request's numbers do not depend on its batch, nor on chunking.
///
/// Weights are widened to f32 exactly (e4m3: code x scale, rounded once to f32; e2m1: code x
/// scale); products and sums are f32. With ops.precision bf16, bf16, e4m3 and e2m1 weights are
/// multiplied by x rounded to bf16 (e4m3: x times the block's factor) and f32 sums remain: a
/// relative error of 2^-9 in each product, and numbers below 2^-126 in size count as zero. With fp8
/// or fp8_pow2, x of e4m3 weights is rounded to bf16 and then to e4m3 codes, with a scale for each
/// 128 neighbours of a row: 3 to 4 % in each product, as fp8 checkpoints were trained. Shapes and
/// dtypes that contradict each other are bugs of the caller (LATHE_CHECK).
void matmul(const OpsContext& ops, std::span<const Product> products);
inline void matmul(const OpsContext& ops, const Product& product) {
  matmul(ops, std::span(&product, 1));
}

/// The numbers of matmul() with both weights and of gated_activation(), without rounding between
/// them.
void gated_matmul(const OpsContext& ops, const GatedProduct& op);

/// A product for every head, as the absorbed projections of latent attention have them: the numbers
/// of matmul() over product_of() of each head, with x in bf16 where precision is fp8.
void head_matmul(const OpsContext& ops, const HeadProducts& op);

}  // namespace lathe
