// Argument structs of operators. The structs of one topic have their own headers: activation.h,
// linear.h (GEMMs), moe.h, sampling.h, compress.h, delta_rule.h, hyper.h,
// layout/rope/rope_write.h and step/attend_op.h. docs/operators.md lists every operator, its struct
// and its documentation.
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
#include "layout/rope/rope_write.h"
#include "step/schedule.h"
#include "step/step.h"

namespace lathe {

class RopeTable;

// Below, "activations" are rows of dtype f32 or Backend::activations().

/// out[t] = scale * table[tokens[t]]. The table may have only a part of the vocabulary's rows:
/// those of tokens from `first` on; the rows of other tokens are 0.
struct Embed {
  WeightView table;                      // [n, cols] without scales
  std::span<const std::int32_t> tokens;  // [T] in [0, vocab)
  MutableRowsView out;                   // [T, cols] f32
  float scale = 1;
  std::int64_t first = 0;
  std::int64_t vocab = 0;
};

struct RmsNorm {
  RowsView x;                     // [T, n] activations
  std::span<const float> weight;  // [n / heads], or empty: 1
  float eps = 0;
  MutableRowsView out;     // [T, n] activations; may be x
  std::int64_t heads = 1;  // a row is [heads, n / heads], and each head is normed separately
  bool add = false;        // out += instead of out =; then out must not overlap x
};

/// rows = rows * times * factor, then, with a limit, rows = limit * tanh(rows / limit). NaN stays
/// NaN.
struct ScaleRows {
  MutableRowsView rows;                // [T, n] f32
  std::span<const float> factor = {};  // [1], or empty: 1
  float times = 1;
  float limit = 0;  // 0: none
};

struct LayerNorm {
  RowsView x;                     // [T, n] activations
  std::span<const float> weight;  // [n]
  std::span<const float> bias;    // [n]
  float eps = 0;
  MutableRowsView out;  // [T, n] activations; may be x
};

/// Each head of x, as wide as x.cols / heads, times the sigmoid of the gate: of one for each
/// element, or of one for the head.
struct GateRows {
  MutableRowsView x;  // [T, heads * n] activations; in place
  RowsView gate;      // [T, n] or [T, 1] f32: of the first head
  std::int64_t heads = 1;
  std::int64_t gate_head = 0;  // elements from a head's gate to the next one's
};

struct CastRows {
  RowsView x;           // f32; x.cols is the width of a head
  MutableRowsView out;  // f32, bf16 or e4m3, with the rows and cols of x
  std::int64_t heads = 1;
  std::int64_t x_head = 0, out_head = 0;  // elements between heads
};

/// Grouped-query attention between projections and kernel: Q/K norm, RoPE, cast of the queries, and
/// the write of keys and values into the cache (ops/qkv.h).
struct QkvRows {
  MutableRowsView q;  // [T, heads * dim] f32; clobbered
  // [T, elements of a cache row] f32: all heads' keys, then values; clobbered. Or no columns: the
  // layer reads another's, and nothing is written.
  MutableRowsView kv;
  std::int64_t heads = 1, kv_heads = 1;
  bool norms = false;                     // norm each head of q and k before RoPE
  std::span<const float> q_norm, k_norm;  // [dim], or empty: 1
  float eps = 0;
  const RopeTable* table = nullptr;     // rotates the first table->dim() elements of each head
  const RopeTable* q_table = nullptr;   // ... of each head of q; null: as `table`
  std::span<const LocalPos> positions;  // [T]
  MutableRowsView q_out;                // [T, heads * dim] f32, bf16 or e4m3; may be q
  std::span<const Slot> slots;          // [T]
  TensorScales scales = {};
  ValueTally* tally = nullptr;  // counts the values written, unless null
};

/// Latent attention between projections and kernel: norms, absorption, RoPE, cast of the queries,
/// and the write of the keys into the cache (ops/latent_rows.h). Rows with position or slot -1 only
/// pad the batch: nothing is written for them, and their queries are undefined.
struct LatentRows {
  MutableRowsView q;  // [T, heads * (qk_nope + rope)] f32; clobbered
  MutableRowsView k;  // [T, nope + rope] f32; clobbered
  std::int64_t heads = 1;
  std::int64_t qk_nope = 0;  // columns of a head of q that are not rotated
  // [nope] weight of the latent's norm; or [nope + rope], then the norm is of whole rows of k.
  std::span<const float> norm;
  bool norms_queries = false;  // norm each head of q, without weight, before RoPE
  float eps = 0;
  // Rotates the last columns of k and of each head of q; null: they have none to rotate.
  const RopeTable* table = nullptr;
  std::span<const LocalPos> positions;  // [T]
  std::span<const Slot> slots;          // [T]
  TensorScales scales = {};
  ValueTally* tally = nullptr;           // counts the values written, unless null
  const WeightStack* absorbs = nullptr;  // [heads] of [nope, qk_nope]; null: no absorption
  // f32, bf16 or e4m3. With absorbs: [T, heads * (nope + rope)]; else the shape of q, and may be q.
  MutableRowsView q_out = {};
};

/// Quantized index queries: pages of index_fp8, one per row, with a token per head.
struct IndexCodes {
  const std::byte* pages = nullptr;  // null: not quantized
};

/// The indexer between projections and selection: LayerNorm, RoPE and cache write of the keys;
/// RoPE, Hadamard rotation and quantization of the queries (ops/indexer_rows.h). Rows with position
/// or slot -1 only pad the batch: no key is written for them.
struct IndexerRows {
  MutableRowsView k = {};  // [T, dim] f32; clobbered; no rows: a compressor writes the keys
  std::span<const float> norm = {}, norm_bias = {};  // [dim] of the LayerNorm of k
  float eps = 0;
  MutableRowsView q = {};  // [T, heads * dim] f32; clobbered; no rows: nothing is ranked
  std::int64_t heads = 1;
  bool hadamard = false;             // SelectKeys::hadamard
  const RopeTable* table = nullptr;  // rotates columns of k and of each head of q
  RopePlace place = RopePlace::last;
  std::span<const LocalPos> positions;  // [T]
  std::span<const Slot> slots = {};     // [T] of k; none without k
};

/// The page table of the keys that a step's indexers rank and select.
inline const PageTableView& index_table(const StepView& step) {
  return step.compressed_lens.empty() ? step.page_table : step.compressed_table;
}

struct SelectKeys {
  const StepView* step = nullptr;
  ConstPoolView keys;  // the layer's index pages, with the same page ids as `main`
  PoolShape main;      // the pool of the selected keys: main, or compressed
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  // Rotated queries and their heads' weights, neither quantised nor scaled. If step->selecting_rows
  // is 0, nothing is ranked and both have no rows.
  RowsView q = {};             // [rows, heads * dim] f32
  IndexCodes codes = {};       // of q, which is then not read
  RowsView weights = {};       // [rows, heads] f32
  bool hadamard = false;       // multiply queries by the Hadamard matrix (see Compress::hadamard)
  std::int64_t most_keys = 0;  // upper bound of index_lens
  std::int64_t k = 0;          // index keys that a row selects
  std::int64_t budget_bytes = 0;  // the plan's budget for indexer logits
  // Several tokens that share an index key are selected together, and a row's list also has its own
  // tokens that have no key yet. Without choices alone.
  std::int32_t tokens_per_key = 1;
  // [rows, k] out: slots of `main` by position, then -1. With tokens_per_key > 1 a row is wider,
  // and `main` has pages of groups of tokens.
  std::span<std::int32_t> slots;
  // [rows] Reuses selections instead of ranking: each row copies row choice_rows[i] of `choices`,
  // [n, choice_width] slots, or if that is -1, its first k keys. Empty: rows are ranked.
  std::span<const std::int32_t> choice_rows = {};
  std::span<const std::int32_t> choices = {};
  std::int64_t choice_width = 0;
};

/// Data that all layers of a step share, made once per step. Lives until the step has been
/// launched.
struct PreparedStep {
  explicit PreparedStep(const Memory& memory) : schedule(memory) {}

  StepView view;  // with arrays in the backend's memory
  Schedule schedule;
};

/// FindNonFinite::first of a row without NaN or Inf so far.
inline constexpr std::int32_t kFinite = INT32_MAX;

struct FindNonFinite {
  RowsView x;  // [n, cols] f32
  // [n] the row of the batch for each row of x; empty: the same row.
  std::span<const std::int32_t> rows;
  std::int32_t layer = 0;
  std::span<std::int32_t> first;  // [rows of the batch] in and out: kFinite, or the first layer
};

}  // namespace lathe
