// Per SIMD target: scores, softmax and weighted values, tile by tile.
#include "kernels/cpu/grouped_query/gqa_task.h"

#include <cstring>

#include "base/float_formats.h"
#include "kernels/cpu/grouped_query/gqa_worker.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/grouped_query/gqa_task.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/tile/tile_math-inl.h"
#include "layout/codec/codec_fast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

// Widens e4m3 codes to bf16, which is exact.
HWY_INLINE void decode_codes(const std::uint8_t* codes, std::size_t n, std::uint16_t* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::size_t i = 0; i < n; ++i) to[i] = to_bf16(to_f32(e4m3{codes[i]})).bits;
#else
  decode_e4m3(codes, n, 1.0f, to);
#endif
}

HWY_INLINE std::size_t bytes_of_element(KeyFormat format) {
  return format == KeyFormat::f32 ? 4 : format == KeyFormat::e4m3 ? 1 : 2;
}

// Transposes a head's keys to columns.
template <class K>
HWY_INLINE void unpack_keys(const GqaJob& job, const TileKeys& tile, std::size_t head,
                            const GqaWorker& w, LinesAhead* ahead) {
  const auto dim = static_cast<std::size_t>(job.head_dim);
  const bool codes = job.format == KeyFormat::e4m3;
  const std::size_t bytes = dim * bytes_of_element(job.format);
  for (std::size_t n = 0; n < kTile; n += kTransposed) {
    const std::uint8_t* row[kTransposed];
    bool any = false;
    for (std::size_t i = 0; i < kTransposed; ++i) {
      row[i] = kNoKey;
      if (tile.key[n + i] == nullptr) continue;
      any = true;
      row[i] = tile.key[n + i] + head * bytes;
      if (!codes) continue;
      std::uint16_t* decoded = w.codes + (n + i) * dim;
      decode_codes(row[i], dim, decoded);
      row[i] = reinterpret_cast<const std::uint8_t*>(decoded);
    }
    // If there is none, no row's range includes these columns, or `valid` excludes them.
    if (any) {
      transpose_rows(row, dim / static_cast<std::size_t>(K::kDepth), w.keys + n, kTile, ahead);
    }
  }
}

// A head's values: used in the pool if they need no unpacking and are read only once or twice;
// otherwise copied to rows.
template <class V>
HWY_INLINE void unpack_values(const GqaJob& job, const TileKeys& tile, std::size_t head,
                              bool in_place, const GqaWorker& w, const typename V::T** rows) {
  using T = typename V::T;
  const auto dim = static_cast<std::size_t>(job.v_head_dim);
  const std::size_t bytes = dim * bytes_of_element(job.format);
  T* unpacked = reinterpret_cast<T*>(w.values);
  for (std::size_t n = 0; n < kTile; ++n, unpacked += dim) {
    const std::uint8_t* from = tile.value[n] == nullptr ? kNoKey : tile.value[n] + head * bytes;
    rows[n] = in_place ? reinterpret_cast<const T*>(from) : unpacked;
    if (in_place) continue;
    if (tile.value[n] == nullptr) {
      std::memset(unpacked, 0, dim * sizeof(T));
    } else if (job.format == KeyFormat::e4m3) {
      if constexpr (sizeof(T) == 2) decode_codes(from, dim, unpacked);
    } else {
      std::memcpy(unpacked, from, dim * sizeof(T));
    }
  }
}

// Folds the accumulators of all heads of the task into their folded states.
HWY_INLINE void fold_all(const GqaWorker& w, std::size_t count, std::size_t v_dim) {
  for (std::size_t i = 0; i < count; ++i) {
    fold_state(w.total_states[i], w.folded + i * v_dim, w.states[i], w.acc + i * v_dim, v_dim);
    w.states[i] = SoftState();
    std::memset(w.acc + i * v_dim, 0, v_dim * sizeof(float));
  }
}

template <class K, class V>
HWY_INLINE void attend_keys(const GqaJob& job, const GqaBlock& block, std::int64_t part,
                            std::size_t first_head, std::size_t heads, const GqaWorker& w) {
  const auto dim = static_cast<std::size_t>(job.head_dim);
  const auto v_dim = static_cast<std::size_t>(job.v_head_dim);
  const auto queries = static_cast<std::size_t>(block.rows * job.group);
  constexpr auto kStep = static_cast<std::int64_t>(kTile);
  std::int64_t from = block.first_key;
  std::int64_t end = block.end_key;
  if (block.parts > 1) {
    const std::int64_t begin = (block.first_key / block.part_keys + part) * block.part_keys;
    from = begin > from ? begin : from;
    end = begin + block.part_keys < end ? begin + block.part_keys : end;
  }
  const bool in_place = job.format != KeyFormat::e4m3 && queries <= 2 * kBlockRows;
  const std::size_t key_bytes = dim * bytes_of_element(job.format);
  const std::size_t value_bytes = v_dim * bytes_of_element(job.format);
  TileKeys tiles[2];
  std::size_t now = 0;
  if (from < end) find_keys(job, block, from / kStep * kStep, from, end, tiles[0]);
  for (std::int64_t first = from / kStep * kStep; first < end; first += kStep, now ^= 1) {
    const TileKeys& tile = tiles[now];
    TileKeys& next = tiles[now ^ 1];
    const bool more = first + kStep < end;
    if (more) find_keys(job, block, first + kStep, from, end, next);
    if (first % job.fold_keys == 0 && first > from) fold_all(w, heads * queries, v_dim);
    if (!tile.any) continue;
    const bool alike = find_ranges(job, block, first, w.ranges);
    if (tile.holes) {
      for (std::size_t n = 0; n < kTile; ++n) w.valid[n] = tile.key[n] != nullptr ? 1.0f : 0.0f;
    }
    LinesAhead ahead;
    if (more) {
      ahead.add(next.key, first_head * key_bytes, heads * key_bytes);
      ahead.add(next.value, first_head * value_bytes, heads * value_bytes);
    }
    for (std::size_t g = 0; g < heads; ++g) {
      const typename V::T* values[kTile];
      unpack_keys<K>(job, tile, first_head + g, w, &ahead);
      unpack_values<V>(job, tile, first_head + g, in_place, w, values);
      const KeyTile<K, RowsOf<V>> keys{reinterpret_cast<const typename K::T*>(w.keys), dim, values,
                                       v_dim, tile.holes ? w.valid : nullptr};
      attend_tile(keys, QueryRows{w.q + g * queries * dim, w.scores, w.acc + g * queries * v_dim,
                                  w.states + g * queries, w.ranges, queries, alike, &ahead});
    }
  }
  fold_all(w, heads * queries, v_dim);
}

void run_task(const GqaJob& job, const GqaBlock& block, std::int64_t part, std::int32_t first_head,
              std::int32_t end_head, std::byte* memory) {
  const GqaWorker w(job, end_head - first_head, memory);
  const auto first = static_cast<std::size_t>(first_head);
  const auto heads = static_cast<std::size_t>(end_head - first_head);
  const auto queries = static_cast<std::size_t>(block.rows * job.group);
  const auto dim = static_cast<std::size_t>(job.head_dim);
  const auto v_dim = static_cast<std::size_t>(job.v_head_dim);
  for (std::size_t g = 0; g < heads; ++g) {
    load_queries(job, block, first_head + static_cast<std::int32_t>(g), w.q + g * queries * dim);
  }
  for (std::size_t i = 0; i < heads * queries; ++i) w.states[i] = w.total_states[i] = SoftState();
  std::memset(w.acc, 0, heads * queries * v_dim * sizeof(float));
  std::memset(w.folded, 0, heads * queries * v_dim * sizeof(float));
  if (job.format == KeyFormat::f32) {
    attend_keys<FloatOperand, FloatOperand>(job, block, part, first, heads, w);
  } else {
    attend_keys<Bf16PairOperand, Bf16Operand>(job, block, part, first, heads, w);
  }

  const auto group = static_cast<std::size_t>(job.group);
  for (std::size_t g = 0; g < heads; ++g) {
    for (std::size_t m = 0; m < queries; ++m) {
      const SoftState state = w.total_states[g * queries + m];
      const float* acc = w.folded + (g * queries + m) * v_dim;
      const auto row = static_cast<std::int64_t>(m / group);
      const auto head = static_cast<std::int32_t>((first + g) * group + m % group);
      if (block.parts == 1) {
        write_result(job, block.row + row, head, state, acc);
        continue;
      }
      const std::int64_t place =
          ((block.first_part + part) * job.kv_heads * job.group + head) * job.block_rows + row;
      job.part_states[place] = state;
      std::memcpy(job.part_acc + place * job.v_head_dim, acc, v_dim * sizeof(float));
    }
  }
}

void combine(const GqaJob& job, const GqaBlock& block, std::int32_t head, std::byte* memory) {
  const GqaWorker w(job, 1, memory);
  const auto v_dim = static_cast<std::size_t>(job.v_head_dim);
  for (std::int32_t row = 0; row < block.rows; ++row) {
    SoftState state;
    std::memset(w.folded, 0, v_dim * sizeof(float));
    for (std::int64_t part = 0; part < block.parts; ++part) {
      const std::int64_t place =
          ((block.first_part + part) * job.kv_heads * job.group + head) * job.block_rows + row;
      fold_state(state, w.folded, job.part_states[place], job.part_acc + place * job.v_head_dim,
                 v_dim);
    }
    write_result(job, block.row + row, head, state, w.folded);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(run_task);
HWY_EXPORT(combine);

std::int64_t gqa_worker_bytes(const GqaJob& job, std::int32_t slice_heads) {
  return GqaWorker(job, slice_heads, nullptr).bytes;
}

void run_gqa_task(const GqaJob& job, const GqaBlock& block, std::int64_t part,
                  std::int32_t first_head, std::int32_t end_head, std::byte* worker_memory) {
  HWY_DYNAMIC_DISPATCH(run_task)(job, block, part, first_head, end_head, worker_memory);
}

void combine_gqa_parts(const GqaJob& job, const GqaBlock& block, std::int32_t head,
                       std::byte* worker_memory) {
  HWY_DYNAMIC_DISPATCH(combine)(job, block, head, worker_memory);
}

}  // namespace lathe
#endif  // HWY_ONCE
