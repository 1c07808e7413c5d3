// The arguments of operators that have more of them than fit a call. Documentation: ops/.
#pragma once

#include <cstdint>
#include <span>

#include "base/enum.h"
#include "base/rows_view.h"
#include "kernels/activation.h"
#include "kernels/linear.h"
#include "kernels/moe.h"
#include "layout/codec/value_tally.h"
#include "layout/pages/pool_shape.h"
#include "layout/pages/pool_view.h"
#include "step/schedule.h"
#include "step/step.h"

namespace lathe {

class RopeTable;

// Activations: f32, or Backend::activations().

struct RmsNorm {
  RowsView x;                     // [T, n] activations
  std::span<const float> weight;  // [n / heads], or empty: 1
  float eps = 0;
  MutableRowsView out;     // [T, n] activations; may be x
  std::int64_t heads = 1;  // every row is [heads, n / heads], each head normed on its own
  bool add = false;        // out += instead of out =; then apart from x
};

struct LayerNorm {
  RowsView x;                     // [T, n] activations
  std::span<const float> weight;  // [n]
  std::span<const float> bias;    // [n]
  float eps = 0;
  MutableRowsView out;  // [T, n] activations; may be x
};

struct CastRows {
  RowsView x;           // f32, cols of a head
  MutableRowsView out;  // f32, bf16 or e4m3 of as many rows and cols
  std::int64_t heads = 1;
  std::int64_t x_head = 0, out_head = 0;  // elements from a head to the next
};

/// Queries, keys and values of grouped-query attention on their way from their projections: queries
/// to an attention kernel, keys and values to the cache.
struct QkvRows {
  MutableRowsView q;   // [T, heads * dim] f32; scratch
  MutableRowsView kv;  // [T, a cache row's] f32: keys of all heads, then values; scratch
  std::int64_t heads = 1, kv_heads = 1;
  bool norms = false;                     // each head of q and k, before it rotates
  std::span<const float> q_norm, k_norm;  // [dim], or empty: 1
  float eps = 0;
  const RopeTable* table = nullptr;     // of the first elements of a head of q and k
  std::span<const LocalPos> positions;  // [T]
  MutableRowsView q_out;                // as q, of f32, bf16 or e4m3; may be q
  std::span<const Slot> slots;          // [T]
  TensorScales scales = {};
  ValueTally* tally = nullptr;  // counts keys and values as they are written; may be null
};

/// Queries and keys of latent attention on their way from their projections: queries to an
/// attention kernel, keys to the cache. Rows whose position or slot is -1 only pad the batch:
/// nothing is written for them, and their queries mean nothing.
struct LatentRows {
  MutableRowsView q;  // [T, heads * (qk_nope + rope)] f32; scratch
  MutableRowsView k;  // [T, nope + rope] f32; scratch
  std::int64_t heads = 1;
  std::int64_t qk_nope = 0;     // columns of a head of q that do not rotate
  std::span<const float> norm;  // [nope] of the latent, before it is written
  float eps = 0;
  const RopeTable* table = nullptr;     // of the last columns of k and of each head of q
  std::span<const LocalPos> positions;  // [T]
  std::span<const Slot> slots;          // [T]
  TensorScales scales = {};
  ValueTally* tally = nullptr;           // counts keys as they are written; may be null
  const WeightStack* absorbs = nullptr;  // [heads] of [nope, qk_nope], or null: heads stay as wide
  // [T, heads * (nope + rope)], or as q and perhaps q; f32, bf16 or e4m3
  MutableRowsView q_out = {};
};

/// Pages of the keys that a step's indexers rank, and of what they choose.
inline const PageTableView& index_table(const StepView& step) {
  return step.compressed_lens.empty() ? step.page_table : step.compressed_table;
}

struct SelectKeys {
  const StepView* step = nullptr;
  ConstPoolView keys;  // the layer's index pages, numbered as those of `main`
  PoolShape main;      // the pool of the chosen keys: main, or compressed
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  // Rotated queries and their heads' weights, neither quantised nor scaled. Both without rows where
  // step->selecting_rows is 0: then nothing is ranked.
  RowsView q = {};             // [rows, heads * dim] f32
  RowsView weights = {};       // [rows, heads] f32
  bool hadamard = false;       // queries are turned as the keys are (Compress::hadamard)
  std::int64_t most_keys = 0;  // of a row, index_lens at most
  std::int64_t k = 0;
  std::int64_t budget_bytes = 0;  // the plan's budget for indexer logits
  std::span<std::int32_t> slots;  // [rows, k] out: slots of `main` by position, then -1
  // [rows] Nothing is ranked: a row takes the list in that row of `choices`, [n, choice_width]
  // slots, or where it is -1 its first k keys. Empty: rows choose.
  std::span<const std::int32_t> choice_rows = {};
  std::span<const std::int32_t> choices = {};
  std::int64_t choice_width = 0;
};

/// What the layers of a step share, made once a step. It lives as long as the step's launch.
struct PreparedStep {
  explicit PreparedStep(const Memory& memory) : schedule(memory) {}

  StepView view;  // its arrays where the backend's kernels read them
  Schedule schedule;
};

/// A row without NaN or Inf so far.
inline constexpr std::int32_t kFinite = INT32_MAX;

struct FindNonFinite {
  RowsView x;  // [n, cols] f32
  // [n] row of the batch that row i of x is; empty: row i.
  std::span<const std::int32_t> rows;
  std::int32_t layer = 0;
  std::span<std::int32_t> first;  // [rows of the batch] lowered from kFinite to `layer`
};

}  // namespace lathe
