// Row-wise operators between products: norms, activations, sums, embedding. Rows are f32 unless
// said otherwise, x and out of norms and activations also Backend::activations(). Sums are f32 in a
// fixed order per row, and a row's bits depend on that row alone.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"
#include "kernels/context.h"
#include "kernels/operators.h"

namespace lathe {

/// New rows of the backend's activations.
MutableRowsView alloc_activations(const OpsContext& ops, std::int64_t rows, std::int64_t cols);
/// Where rows go that only products read from then on: x itself where it has the backend's
/// activations, else new rows.
MutableRowsView activations_of(const OpsContext& ops, const MutableRowsView& x);

/// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight. x, out: [T, n], may be the same rows;
/// weight: [n]. With heads > 1 every row is [heads, n / heads], each head is normed on its own and
/// weight is [n / heads] (Qwen 3's q and k norms). An empty weight is 1 (DeepSeek V4's q; on a
/// host).
void rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight, float eps,
              const MutableRowsView& out, std::int64_t heads = 1);
/// out[t] += the same of one head. x and out are apart.
void add_rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                  float eps, const MutableRowsView& out);

/// out[t] = (x[t] - mean) / sqrt(var + eps) * weight + bias, var over n without correction.
/// weight, bias: [n].
void layer_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                std::span<const float> bias, float eps, const MutableRowsView& out);

/// out = activation(gate, up), see kernels/activation.h. Its relative error is at most (4 + 2 |e|)
/// 2^-23, e the argument of its sigmoid: v, sqrt(8 / pi) (v + 0.044715 v^3) or alpha c.
/// Below e = -88 it is 1e-34 in size at most. NaN stays.
void gated_activation(const OpsContext& ops, const GatedActivation& op);

/// out += x. [T, n]
void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out);

/// out[t] = scale * table[tokens[t]] widened to f32. table: [vocab, n] of any weight dtype without
/// scales; tokens in [0, vocab): a bug otherwise (the engine has checked them).
void embed(const OpsContext& ops, const WeightView& table, std::span<const std::int32_t> tokens,
           const MutableRowsView& out, float scale = 1);

/// out[i] = x[rows[i]]. x: [T, n] of any dtype but sub-byte ones; out: [rows, n] of the same.
void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                 const MutableRowsView& out);

/// Lowers op.first of each row that holds NaN or Inf from kFinite to op.layer; other entries stay.
void find_non_finite(const OpsContext& ops, const FindNonFinite& op);

}  // namespace lathe
