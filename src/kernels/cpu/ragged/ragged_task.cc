// One `ragged` task, per SIMD target: expands a head's keys and values chunk by chunk, and attends.
#include "kernels/cpu/ragged/ragged_task.h"

#include <cstring>
#include <numbers>

#include "base/check.h"
#include "kernels/cpu/attend_io.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/simd_targets.h"
#include "kernels/cpu/tile/pair_tile.h"
#include "kernels/cpu/tile/tile_types.h"
#include "layout/codec.h"

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
// Rows that meet a tile together; a multiple of the register block.
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

// Cuts the memory of a worker; without memory it only counts the bytes.
class Cutter {
 public:
  explicit Cutter(std::byte* memory) : memory_(memory) {}
  template <class T>
  void take(T*& p, std::int64_t count) {
    p = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at_);
    at_ += (count * std::int64_t{sizeof(T)} + 63) / 64 * 64;
  }
  std::int64_t bytes() const { return at_; }

 private:
  std::byte* memory_;
  std::int64_t at_ = 0;
};

// What a worker keeps in either arithmetic.
struct RaggedWorker {
  float* valid;       // [chunk tiles, kTile]
  float* scores;      // [block, kTile]
  float* acc;         // [rows, v_padded]
  SoftState* states;  // [rows]
  RowRange* ranges;   // [block]

  RaggedWorker(const RaggedDims& d, std::int32_t rows, Cutter& memory) {
    memory.take(valid, kRaggedChunkKeys);
    memory.take(scores, kBlockQueries * kTileKeys);
    memory.take(acc, rows * d.v_padded);
    memory.take(states, rows);
    memory.take(ranges, kBlockQueries);
  }
};

// Operands in f32.
struct FloatMemory {
  using Latent = float;
  static constexpr DType kLatent = DType::f32;
  float* latents;     // [kTile, latent]
  float* columns;     // [latent, kTile]
  float* keys;        // [chunk tiles, k, kTile]
  float* value_rows;  // [v_padded, kTile]
  float* values;      // [chunk tiles, kTile, v_padded]
  float* q;           // [rows, k], scaled; kept, as rows lie far apart in the caller's matrix

  FloatMemory(const AttendArgs&, const RaggedDims& d, std::int32_t rows, Cutter& memory) {
    memory.take(latents, kTileKeys * d.latent);
    memory.take(columns, kTileKeys * d.latent);
    memory.take(keys, kRaggedChunkKeys * d.k);
    memory.take(value_rows, kTileKeys * d.v_padded);
    memory.take(values, kRaggedChunkKeys * d.v_padded);
    memory.take(q, rows * d.k);
  }
};

// Operands in bf16, two neighbours in the direction of the sum to a word.
struct PairMemory {
  using Latent = std::uint16_t;
  static constexpr DType kLatent = DType::bf16;
  std::uint16_t* weights;     // [k_nope + v, nope] of the head, where kv_b is not bf16
  std::uint16_t* latents;     // [kTile, latent]
  std::uint32_t* columns;     // [latent / 2, kTile]
  float* expanded;            // [k_nope + v, kTile]
  std::uint32_t* keys;        // [chunk tiles, k / 2, kTile]
  std::uint16_t* value_rows;  // [v_padded, kTile]
  std::uint32_t* values;      // [chunk tiles, kTile / 2, v_padded]
  float* q_row;               // [k]
  std::uint16_t* q;           // [rows, k], scaled
  std::uint16_t* weighted;    // [block, kTile] softmax weights
  std::uint32_t* half;        // [v_padded]

  PairMemory(const AttendArgs& args, const RaggedDims& d, std::int32_t rows, Cutter& memory) {
    const bool widens = args.expansion.kv_b_dtype != DType::bf16;
    memory.take(weights, widens ? (d.k_nope + d.v) * d.nope : 0);
    memory.take(latents, kTileKeys * d.latent);
    memory.take(columns, kTileKeys * d.latent / 2);
    memory.take(expanded, (d.k_nope + d.v) * kTileKeys);
    memory.take(keys, kRaggedChunkKeys * d.k / 2);
    memory.take(value_rows, kTileKeys * d.v_padded);
    memory.take(values, kRaggedChunkKeys * d.v_padded / 2);
    memory.take(q_row, d.k);
    memory.take(q, rows * d.k);
    memory.take(weighted, kBlockQueries * kTileKeys);
    memory.take(half, d.v_padded);
  }
};

// What is known of an expanded tile.
struct TileKind {
  bool any = false;
  bool holes = false;
};

// Decodes the latents of keys first .. of a request, below `end`, to `to` [kTile, latent].
TileKind load_latents(const AttendArgs& args, std::int32_t request, std::int64_t first,
                      std::int64_t end, std::int64_t width, DType dtype, void* to, float* valid) {
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
  // Without the tensor's scale, which q and out take over; a hole gives zeros.
  const Result<void> done =
      gather_decode(pool, slots, {static_cast<std::byte*>(to), dtype, kTileKeys, width, width});
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

// to[column][row] = from[row][column]; both counts are multiples of 4.
HWY_INLINE void transpose(const float* from, std::size_t rows, std::size_t columns, float* to) {
  for (std::size_t r = 0; r < rows; r += 4) {
    for (std::size_t c = 0; c < columns; c += 4) {
      const float* at = from + r * columns + c;
      transpose_4x4(at, at + columns, at + 2 * columns, at + 3 * columns,
                    reinterpret_cast<std::uint32_t*>(to + c * rows + r), rows);
    }
  }
}

// How a head's queries, keys and values are made and multiplied, in f32.
class FloatTiles {
 public:
  using Memory = FloatMemory;
  FloatTiles(const AttendArgs& args, const RaggedDims& d, std::int32_t head, const Memory& m)
      : args_(args), d_(d), head_(head), m_(m) {
    // Rows of padding stay zero; the products write the others.
    std::memset(m.value_rows, 0, size(d.v_padded) * kTile * sizeof(float));
  }
  HWY_INLINE void load_query(const RowsView& q, std::int64_t from, float scale, std::int64_t to) {
    load_row(q, from, head_ * d_.k, d_.k, scale, m_.q + to * d_.k);
  }
  // The head's keys and values of the tile in m_.latents, as tile t of the chunk.
  HWY_INLINE void expand(std::int64_t t) {
    transpose(m_.latents, kTile, size(d_.latent), m_.columns);
    float* keys = m_.keys + t * d_.k * kTileKeys;
    multiply(args_.expansion.w_uk, d_.k_nope, keys);
    std::memcpy(keys + d_.k_nope * kTileKeys, m_.columns + d_.nope * kTileKeys,
                size(d_.rope) * kTile * sizeof(float));
    multiply(args_.expansion.w_uv, d_.v, m_.value_rows);
    transpose(m_.value_rows, size(d_.v_padded), kTile, m_.values + t * d_.v_padded * kTileKeys);
  }
  HWY_INLINE void attend(std::int64_t t, const float* valid, std::int64_t first,
                         const QueryRows& rows) {
    const KeyTile<FloatOperand, FloatOperand> tile{m_.keys + t * d_.k * kTileKeys, size(d_.k),
                                                   m_.values + t * d_.v_padded * kTileKeys,
                                                   size(d_.v_padded), valid};
    QueryRows all = rows;
    all.q = m_.q + first * d_.k;
    attend_tile(tile, all);
  }

 private:
  HWY_INLINE void multiply(std::span<const float> weights, std::int64_t width, float* to) {
    product(Product<FloatOperand>{weights.data() + head_ * width * d_.nope, size(d_.nope),
                                  m_.columns, kTile, to, kTile, size(d_.nope), false, nullptr},
            size(width), kTile);
  }

  const AttendArgs& args_;
  const RaggedDims& d_;
  std::int64_t head_;
  const Memory& m_;
};

// The same by bf16 pairs: operands are rounded to bf16, sums and the softmax are f32.
class PairTiles {
 public:
  using Memory = PairMemory;
  PairTiles(const AttendArgs& args, const RaggedDims& d, std::int32_t head, const Memory& m)
      : d_(d), head_(head), m_(m) {
    const Expansion& e = args.expansion;
    const std::int64_t width = d.k_nope + d.v;
    weights_ = reinterpret_cast<const std::uint16_t*>(e.kv_b) + head * width * d.nope;
    if (e.kv_b_dtype != DType::bf16) {
      const WeightView w{e.kv_b, e.kv_b_dtype, args.problem.heads * width, d.nope, e.kv_b_scales};
      for (std::int64_t r = 0; r < width; ++r) {
        round_weight_row(w, head * width + r, m.weights + r * d.nope);
      }
      weights_ = m.weights;
    }
    std::memset(m.value_rows, 0, size(d.v_padded) * kTile * sizeof(std::uint16_t));
  }
  HWY_INLINE void load_query(const RowsView& q, std::int64_t from, float scale, std::int64_t to) {
    load_row(q, from, head_ * d_.k, d_.k, scale, m_.q_row);
    round_to_pairs(m_.q_row, d_.k, m_.q + to * d_.k);
  }
  HWY_INLINE void expand(std::int64_t t) {
    transpose_words(m_.latents, kTileKeys, d_.latent / 2, m_.columns);
    pair_product(
        {weights_, d_.nope, m_.columns, kTileKeys, m_.expanded, kTileKeys, d_.nope / 2, false},
        d_.k_nope + d_.v, kTileKeys);
    std::uint32_t* keys = m_.keys + t * d_.k / 2 * kTileKeys;
    for (std::int64_t k = 0; k < d_.k_nope; k += 2) {
      const float* row = m_.expanded + k * kTileKeys;
      join_rows(row, row + kTileKeys, kTileKeys, keys + k / 2 * kTileKeys);
    }
    std::memcpy(keys + d_.k_nope / 2 * kTileKeys, m_.columns + d_.nope / 2 * kTileKeys,
                size(d_.rope / 2) * kTile * sizeof(std::uint32_t));
    round_to_pairs(m_.expanded + d_.k_nope * kTileKeys, d_.v * kTileKeys, m_.value_rows);
    transpose_words(m_.value_rows, d_.v_padded, kTileKeys / 2,
                    m_.values + t * kTileKeys / 2 * d_.v_padded);
  }
  HWY_INLINE void attend(std::int64_t t, const float* valid, std::int64_t first,
                         const QueryRows& rows) {
    pair_product({m_.q + first * d_.k, d_.k, m_.keys + t * d_.k / 2 * kTileKeys, kTileKeys,
                  rows.scores, kTileKeys, d_.k / 2, false},
                 static_cast<std::int64_t>(rows.count), kTileKeys);
    for (std::size_t r = 0; r < rows.count; ++r) {
      const RowRange& range = rows.ranges[r];
      float* scores = rows.scores + r * kTile;
      const float factor =
          softmax_step(scores, size(range.begin), size(range.end), valid, rows.states[r]);
      if (factor != 1.0f) scale_row(rows.acc + r * size(d_.v_padded), size(d_.v_padded), factor);
    }
    round_to_pairs(rows.scores, static_cast<std::int64_t>(rows.count) * kTileKeys, m_.weighted);
    const std::uint32_t* values = m_.values + t * kTileKeys / 2 * d_.v_padded;
    const auto count = static_cast<std::int64_t>(rows.count);
    if (rows.alike) return weigh(values, rows, 0, count, 0, rows.ranges[0].end);
    // Rows go together over the keys that all of them see, whole pairs, and alone over the rest.
    constexpr std::int64_t kTogether = 6;
    for (std::int64_t row = 0; row < count; row += kTogether) {
      const std::int64_t n = count - row < kTogether ? count - row : kTogether;
      const std::int32_t shared = rows.ranges[row].end / 2 * 2;  // later rows see more
      weigh(values, rows, row, n, 0, shared);
      for (std::int64_t r = row; r < row + n; ++r) {
        weigh(values, rows, r, 1, shared, rows.ranges[r].end);
      }
    }
  }

 private:
  // rows [count, words] of words to columns [words, count].
  HWY_INLINE void transpose_words(const std::uint16_t* rows, std::int64_t count, std::int64_t words,
                                  std::uint32_t* to) {
    for (std::int64_t r = 0; r < count; r += std::int64_t{kTransposed}) {
      const std::uint8_t* lines[kTransposed];
      for (std::size_t i = 0; i < kTransposed; ++i) {
        lines[i] = reinterpret_cast<const std::uint8_t*>(rows + (r + static_cast<std::int64_t>(i)) *
                                                                    words * 2);
      }
      transpose_rows(lines, size(words), to + r, size(count), nullptr);
    }
  }

  // acc of rows += weights[begin .. end) values[begin .. end). Values past a row's end are not
  // touched, so that what they hold cannot matter (0 * NaN).
  HWY_INLINE void weigh(const std::uint32_t* values, const QueryRows& rows, std::int64_t row,
                        std::int64_t count, std::int64_t begin, std::int64_t end) {
    const std::int64_t v = d_.v_padded;
    PairProduct p{m_.weighted + row * kTileKeys + begin,
                  kTileKeys,
                  values + begin / 2 * v,
                  v,
                  rows.acc + row * v,
                  v,
                  (end - begin) / 2,
                  true};
    if (p.pairs > 0) pair_product(p, count, v);
    if (end % 2 == 0) return;
    const std::uint32_t* last = values + end / 2 * v;
    for (std::int64_t i = 0; i < v; ++i) m_.half[i] = last[i] & 0xffffu;
    p.a += end - 1 - begin;
    p.b = m_.half;
    p.pairs = 1;
    pair_product(p, count, v);
  }

  const RaggedDims& d_;
  std::int64_t head_;
  const Memory& m_;
  const std::uint16_t* weights_;
};

template <class Tiles>
HWY_INLINE void attend_chunk(Tiles& tiles, const RaggedRows& rows, const RaggedDims& d,
                             const RaggedWorker& w, std::int64_t first, const TileKind* kinds) {
  for (std::int32_t block = 0; block < rows.rows; block += kBlockQueries) {
    const std::int32_t left = rows.rows - block;
    const std::int32_t count = left < kBlockQueries ? left : kBlockQueries;
    const std::int64_t position = rows.position + block;  // of the block's first row
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
      tiles.attend(t, kinds[t].holes ? w.valid + t * kTileKeys : nullptr, block + blind,
                   QueryRows{nullptr, w.scores, w.acc + (block + blind) * d.v_padded,
                             w.states + block + blind, w.ranges + blind, size(count - blind),
                             w.ranges[blind].end == w.ranges[count - 1].end, nullptr});
    }
  }
}

template <class Tiles>
HWY_INLINE void attend_rows(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                            std::int32_t most_rows, std::byte* memory) {
  const RaggedDims d(args.problem);
  Cutter cutter(memory);
  const RaggedWorker w(d, most_rows, cutter);
  const typename Tiles::Memory m(args, d, most_rows, cutter);
  Tiles tiles(args, d, head, m);
  const std::int64_t end = rows.position + rows.rows;
  const auto query_scale = static_cast<float>(double{args.problem.scale} * double{args.q_scale} *
                                              double{args.main.key_scale} * std::numbers::log2e);
  for (std::int32_t r = 0; r < rows.rows; ++r) {
    tiles.load_query(args.q, rows.row + r, query_scale, r);
    w.states[r] = SoftState();
  }
  std::memset(w.acc, 0, size(rows.rows * d.v_padded) * sizeof(float));
  for (std::int64_t first = 0; first < end; first += kRaggedChunkKeys) {
    TileKind kinds[kChunkTiles];
    for (std::int64_t t = 0; t < kChunkTiles; ++t) {
      const std::int64_t start = first + t * kTileKeys;
      if (start >= end) break;
      kinds[t] = load_latents(args, rows.request, start, end, d.latent, Tiles::Memory::kLatent,
                              m.latents, w.valid + t * kTileKeys);
      if (kinds[t].any) tiles.expand(t);
    }
    attend_chunk(tiles, rows, d, w, first, kinds);
  }
  const float* sink = args.problem.sink ? args.sink.data() + head : nullptr;
  for (std::int32_t r = 0; r < rows.rows; ++r) {
    const Finished done =
        finish_softmax(w.states[r].max, w.states[r].sum, sink, args.main.key_scale);
    store_output(args.out, rows.row + r, head * d.v, d.v, w.acc + r * d.v_padded, done);
    store_lse(args, rows.row + r, head, done);
  }
}

void ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                 std::int32_t most_rows, std::byte* memory) {
  if (ragged_by_pairs(args)) {
    attend_rows<PairTiles>(args, rows, head, most_rows, memory);
  } else {
    attend_rows<FloatTiles>(args, rows, head, most_rows, memory);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(ragged_task);

bool ragged_by_pairs(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  const Expansion& e = args.expansion;
  return e.kv_b != nullptr && (e.kv_b_dtype == DType::bf16 || e.kv_b_dtype == DType::e4m3) &&
         p.nope % 8 == 0 && p.rope % 8 == 0 && p.qk_nope_head % 2 == 0 && cpu_has_bf16_dot();
}

std::int64_t ragged_worker_bytes(const AttendArgs& args, std::int32_t rows) {
  const RaggedDims d(args.problem);
  Cutter count(nullptr);
  const RaggedWorker worker(d, rows, count);
  if (ragged_by_pairs(args)) {
    const PairMemory pairs(args, d, rows, count);
  } else {
    const FloatMemory floats(args, d, rows, count);
  }
  return count.bytes();
}

void run_ragged_task(const AttendArgs& args, const RaggedRows& rows, std::int32_t head,
                     std::int32_t most_rows, std::byte* worker_memory) {
  HWY_DYNAMIC_DISPATCH(ragged_task)(args, rows, head, most_rows, worker_memory);
}

}  // namespace lathe
#endif  // HWY_ONCE
