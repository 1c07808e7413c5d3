// Row-wise operators between GEMMs: norms, activations, sums, embedding. Rows are f32 unless stated
// otherwise; x and out of norms and activations may also have the dtype Backend::activations().
// Sums are f32 in a fixed order per row, so a row's bits depend on that row alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/context.h"
#include "kernels/operators.h"

namespace lathe {

/// Allocates rows of the dtype Backend::activations().
MutableRowsView alloc_activations(const OpsContext& ops, std::int64_t rows, std::int64_t cols);
/// Where to write rows that only GEMMs read from then on: x itself if it has the dtype
/// Backend::activations(), else newly allocated rows.
MutableRowsView activations_of(const OpsContext& ops, const MutableRowsView& x);

/// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. x, out: [T, n], may be the same rows;
/// weight: [n]. With heads > 1, each row is [heads, n / heads], every head is normed separately and
/// weight is [n / heads] (Qwen 3's q and k norms). An empty weight means 1 (DeepSeek V4's q).
void rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight, float eps,
              const MutableRowsView& out, std::int64_t heads = 1);
/// out[t] += x[t] / sqrt(mean(x[t]^2) + eps) * weight. x and out must not overlap.
void add_rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                  float eps, const MutableRowsView& out);

/// out[t] = (x[t] - mean) / sqrt(var + eps) * weight + bias; var divides by n. weight, bias: [n].
void layer_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                std::span<const float> bias, float eps, const MutableRowsView& out);

/// out = activation(gate, up), see kernels/activation.h. The relative error is at most
/// (4 + 2 |e|) 2^-23, where e is the argument of the sigmoid: v, sqrt(8 / pi) (v + 0.044715 v^3) or
/// alpha c. For e < -88 the result is at most 1e-34 in magnitude. NaN stays NaN.
void gated_activation(const OpsContext& ops, const GatedActivation& op);

/// x *= sigmoid(gate), see GateRows. NaN stays NaN.
void gate_rows(const OpsContext& ops, const GateRows& op);

/// out += x. [T, n]
void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out);

/// rows *= factor[0]. rows: [T, n] f32; factor: [1] in the backend's memory (Gemma 4's layers).
void scale_rows(const OpsContext& ops, const MutableRowsView& rows, std::span<const float> factor);
/// rows *= times. rows: [T, n] f32.
void scale_rows(const OpsContext& ops, const MutableRowsView& rows, float times);
/// rows = limit * tanh(rows / limit), a soft cap of logits. rows: [T, n] f32; limit > 0. The error
/// is at most 2^-20 of the result.
void cap_rows(const OpsContext& ops, const MutableRowsView& rows, float limit);

/// out[t] = scale * table[tokens[t]], widened to f32. table: [vocab, n] of any weight dtype without
/// scales. Precondition: tokens are in [0, vocab); the engine has checked them.
void embed(const OpsContext& ops, const WeightView& table, std::span<const std::int32_t> tokens,
           const MutableRowsView& out, float scale = 1);
/// The same of a table with a part of the vocabulary's rows: 0 for tokens that it does not have, so
/// that the ranks' results sum to the whole table's.
void embed(const OpsContext& ops, const Embed& op);

/// out[i] = x[rows[i]]. x: [T, n] of any dtype of whole bytes; out: [rows, n] of the same dtype.
void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                 const MutableRowsView& out);

/// Sets op.first to op.layer for each row with NaN or Inf, unless it was set before.
void find_non_finite(const OpsContext& ops, const FindNonFinite& op);

}  // namespace lathe
