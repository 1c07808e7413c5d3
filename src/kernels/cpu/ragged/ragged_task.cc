#include "kernels/cpu/ragged/ragged_task.h"

#include <cstring>
#include <numbers>

#include "base/check.h"
#include "kernels/cpu/common/attend_io.h"
#include "kernels/cpu/ragged/ragged_expand.h"
#include "kernels/cpu/tile/tile_types.h"
#include "layout/codec/codec.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/ragged/ragged_task.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/tile/tile_math-inl.h"

#ifndef LATHE_KERNELS_CPU_RAGGED_TASK_ONCE_
#define LATHE_KERNELS_CPU_RAGGED_TASK_ONCE_
namespace lathe {
namespace {

constexpr std::int64_t kTileKeys = kTile;
constexpr std::int64_t kChunkTiles = kRaggedChunkKeys / kTileKeys;
// Rows that are multiplied with a tile at once; a multiple of the register block.
constexpr std::int32_t kBlockQueries = 96;

struct RaggedDims {
  std::int64_t nope, rope, k_nope, v;
  std::int64_t latent, k, v_padded;

  explicit RaggedDims(const AttentionProblem& p)
      : nope(p.nope),
        rope(p.rope),
        k_nope(p.qk_nope_head),
        v(p.v_head),
        latent(nope + rope),
        k(k_nope + rope),
        v_padded((v + 15) / 16 * 16) {}
};

// One worker's scratch.
struct RaggedWorker {
  bool by_pairs;  // keys and values are expanded by bf16 pairs
  RaggedPairs pairs;
  float* latents;     // [kTile, latent]
  float* columns;     // [latent, kTile]
  float* keys;        // [chunk tiles, k, kTile]
  float* value_rows;  // [v_padded, kTile]
  float* values;      // [chunk tiles, kTile, v_padded]
  float* valid;       // [chunk tiles, kTile]
  float* q;           // [rows, k], scaled; a copy, as rows are far apart in the caller's matrix
  float* scores;      // [block, kTile]
  float* acc;         // [rows, v_padded]
  SoftState* states;  // [rows]
  RowRange* ranges;   // [block]
  std::int64_t bytes;

  RaggedWorker(const AttentionProblem& p, bool pairwise, std::int32_t rows, std::byte* memory)
      : by_pairs(pairwise) {
    const RaggedDims d(p);
    std::int64_t at = 0;
    const auto take = [&]<class T>(T*& p, std::int64_t count) {
      p = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + at);
      at += (count * std::int64_t{sizeof(T)} + 63) / 64 * 64;
    };
    take(pairs.latents, pairwise ? ragged_pair_latents(p) : 0);
    take(pairs.weights, pairwise ? ragged_pair_weights(p) : 0);
    take(latents, kTileKeys * d.latent);
    take(columns, kTileKeys * d.latent);
    take(keys, kRaggedChunkKeys * d.k);
    take(value_rows, kTileKeys * d.v_padded);
    take(values, kRaggedChunkKeys * d.v_padded);
    take(valid, kRaggedChunkKeys);
    take(q, rows * d.k);
    take(scores, kBlockQueries * kTileKeys);
    take(acc, rows * d.v_padded);
    take(states, rows);
    take(ranges, kBlockQueries);
    bytes = at;
  }
};

// Properties of an expanded tile.
struct TileKind {
  bool any = false;
  bool holes = false;
};

// Decodes a request's latents to worker.latents: a tile from key `first`, up to `end`.
TileKind load_latents(const AttendArgs& args, std::int32_t request, std::int64_t first,
                      std::int64_t end, const RaggedDims& d, const RaggedWorker& w, float* valid) {
  const KeySource& source = args.main;
  const ConstPoolView& pool = *source.pool;
  Slot slots[kTile];
  TileKind kind;
  for (std::int64_t n = 0; n < kTileKeys; ++n) {
    const std::int64_t pos = first + n;
    slots[n] = Slot();
    valid[n] = 0;
    if (pos >= end) continue;
    const PageId page =
        source.page_table.data()[request * source.table_width + pos / pool.page_size];
    if (page.value < 0 || page.value >= pool.pages) {
      kind.holes = true;
      continue;
    }
    slots[n] = slot_of(page, pool.page_size, static_cast<std::int32_t>(pos % pool.page_size));
    valid[n] = 1;
    kind.any = true;
  }
  if (!kind.any) return kind;
  // Decodes without the per-tensor scale, which is applied to q and out. A hole gives zeros.
  const Result<void> done = gather_decode(
      pool, slots,
      {reinterpret_cast<std::byte*>(w.latents), DType::f32, kTileKeys, d.latent, d.latent});
  LATHE_CHECK(done.ok(), "slots of a checked pool");
  return kind;
}

}  // namespace
}  // namespace lathe
#endif  // LATHE_KERNELS_CPU_RAGGED_TASK_ONCE_

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// to[column][row] = from[row][column]; rows and columns are multiples of 4.
HWY_INLINE void transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  for (std::size_t r = 0; r < rows; r += 4) {
    for (std::size_t c = 0; c < columns; c += 4) {
      const float* at = from + r * columns + c;
      transpose_4x4(at, at + columns, at + 2 * columns, at + 3 * columns,
                    reinterpret_cast<std::uint32_t*>(to + c * rows + r), rows);
    }
  }
}

// Writes keys and w.value_rows from w.columns.
HWY_INLINE void expand_f32(const AttendArgs& args, std::int32_t head, const RaggedDims& d,
                           const RaggedWorker& w, float* keys) {
  product(Product<FloatOperand>{args.expansion.w_uk.data() + head * d.k_nope * d.nope, size(d.nope),
                                w.columns, kTile, keys, kTile, size(d.nope), false, nullptr},
          size(d.k_nope), kTile);
  product(
      Product<FloatOperand>{args.expansion.w_uv.data() + head * d.v * d.nope, size(d.nope),
                            w.columns, kTile, w.value_rows, kTile, size(d.nope), false, nullptr},
      size(d.v), kTile);
}

// Expands the latents in w.latents to the head's keys and values, as tile t of the chunk.
HWY_INLINE void expand_tile(const AttendArgs& args, std::int32_t head, const RaggedDims& d,
                            const RaggedWorker& w, std::int64_t t) {
  transpose(w.latents, kTile, size(d.latent), w.columns);
  float* keys = w.keys + t * d.k * kTileKeys;
  if (w.by_pairs) {
    ragged_pair_columns(args.problem, w.columns, w.pairs);
    ragged_expand(args, head, 0, d.k_nope, w.pairs, keys);
    ragged_expand(args, head, d.k_nope, d.v, w.pairs, w.value_rows);
  } else {
    expand_f32(args, head, d, w, keys);
  }
  std::memcpy(keys + d.k_nope * kTileKeys, w.columns + d.nope * kTileKeys,
              size(d.rope) * kTile * sizeof(float));
  transpose(w.value_rows, size(d.v_padded), kTile, w.values + t * d.v_padded * kTileKeys);
}

HWY_INLINE void attend_chunk(const RaggedRows& rows, const RaggedDims& d, const RaggedWorker& w,
                             std::int64_t first, const TileKind* kinds) {
  for (std::int32_t block = 0; block < rows.rows; block += kBlockQueries) {
    const std::int32_t left = rows.rows - block;
    const std::int32_t count = left < kBlockQueries ? left : kBlockQueries;
    const std::int64_t position = rows.position + block;  // the position of the block's first row
    if (position + count <= first) continue;
    for (std::int64_t t = 0; t < kChunkTiles; ++t) {
      const std::int64_t start = first + t * kTileKeys;
      if (!kinds[t].any || start >= position + count) continue;
      // Rows before `blind` see nothing of the tile.
      const auto blind = static_cast<std::int32_t>(start > position ? start - position : 0);
      for (std::int32_t r = blind; r < count; ++r) {
        const std::int64_t seen = position + r + 1 - start;
        w.ranges[r] = {0, static_cast<std::int32_t>(seen < kTileKeys ? seen : kTileKeys)};
      }
      const KeyTile<FloatOperand, FloatOperand> tile{
          w.keys + t * d.k * kTileKeys, size(d.k), w.values + t * d.v_padded * kTileKeys,
          size(d.v_padded), kinds[t].holes ? w.valid + t * kTileKeys : nullptr};
      attend_tile(tile, QueryRows{w.q + (block + blind) * d.k, w.scores,
                                  w.acc + (block + blind) * d.v_padded, w.states + block + blind,
                                  w.ranges + blind, size(count - blind),
                                  w.ranges[blind].end == w.ranges[count - 1].end, nullptr});
    }
  }
}

void ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                 std::int32_t most_rows, std::byte* memory) {
  const RaggedDims d(args.problem);
  const RaggedWorker w(args.problem, ragged_expands_by_pairs(args), most_rows, memory);
  if (w.by_pairs) ragged_widen_weights(args, head, w.pairs);
  const std::int64_t end = rows.position + rows.rows;
  const auto query_scale = static_cast<float>(double{args.problem.scale} * double{args.q_scale} *
                                              double{args.main.key_scale} * std::numbers::log2e);
  for (std::int32_t r = 0; r < rows.rows; ++r) {
    load_row(args.q, rows.row + r, head * d.k, d.k, query_scale, w.q + r * d.k);
    w.states[r] = SoftState();
  }
  std::memset(w.acc, 0, size(rows.rows * d.v_padded) * sizeof(float));
  // Padding rows stay zero; the GEMMs write the other rows.
  std::memset(w.value_rows, 0, size(d.v_padded) * kTile * sizeof(float));
  for (std::int64_t first = 0; first < end; first += kRaggedChunkKeys) {
    TileKind kinds[kChunkTiles];
    for (std::int64_t t = 0; t < kChunkTiles; ++t) {
      const std::int64_t start = first + t * kTileKeys;
      if (start >= end) break;
      kinds[t] = load_latents(args, rows.request, start, end, d, w, w.valid + t * kTileKeys);
      if (kinds[t].any) expand_tile(args, head, d, w, t);
    }
    attend_chunk(rows, d, w, first, kinds);
  }
  const float* sink = args.problem.sink ? args.sink.data() + head : nullptr;
  for (std::int32_t r = 0; r < rows.rows; ++r) {
    const Finished done =
        finish_softmax(w.states[r].max, w.states[r].sum, sink, args.main.key_scale);
    store_output(args.out, rows.row + r, head * d.v, d.v, w.acc + r * d.v_padded, done);
    store_lse(args, rows.row + r, head, done);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(ragged_task);

std::int64_t ragged_worker_bytes(const AttendArgs& args, std::int32_t rows) {
  return RaggedWorker(args.problem, ragged_expands_by_pairs(args), rows, nullptr).bytes;
}

void run_ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                     std::int32_t most_rows, std::byte* worker_memory) {
  HWY_DYNAMIC_DISPATCH(ragged_task)(args, rows, head, most_rows, worker_memory);
}

}  // namespace lathe
#endif  // HWY_ONCE
