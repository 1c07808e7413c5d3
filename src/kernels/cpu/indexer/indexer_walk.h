// Decodes the keys of a few query rows tile by tile, for index_logits() and index_top_k().
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "attn/index_args.h"
#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/indexer/indexer_tile.h"

namespace lathe {

/// One worker's scratch: a tile of keys, and packed query rows.
class TileMemory {
 public:
  static std::int64_t bytes(const IndexQuery& query, std::int64_t tile_keys,
                            std::int64_t tile_rows) {
    const std::int64_t heads = padded_index_heads(query.heads);
    const std::int64_t floats = tile_keys * (query.dim + 2) + tile_rows * heads * (query.dim + 1);
    return whole_lines(4 * floats);
  }
  TileMemory(const IndexQuery& query, std::int64_t tile_keys, std::int64_t tile_rows, std::byte* at)
      : keys(reinterpret_cast<float*>(at)),
        q(keys + tile_keys * query.dim),
        w(q + tile_rows * padded_index_heads(query.heads) * query.dim),
        scales(w + tile_rows * padded_index_heads(query.heads)),
        logits(scales + tile_keys) {}

  float* keys;    // [tile_keys, dim]
  float* q;       // [tile_rows, padded heads * dim]
  float* w;       // [tile_rows, padded heads]
  float* scales;  // [tile_keys]
  float* logits;  // [tile_keys]
};

/// Decodes keys first .. first + n - 1 of row t; a key without a page gets a NaN scale.
void load_index_keys(const IndexKeys& keys, const IndexRows& rows, std::int32_t dim, std::int64_t t,
                     std::int64_t first, std::int64_t n, const TileMemory& memory);

/// Whether two rows have the same keys in memory and so can share decoded tiles.
inline bool same_index_keys(const IndexKeys& keys, const IndexRows& rows, std::int64_t a,
                            std::int64_t b) {
  const auto& which = keys.pool ? rows.request : rows.first;
  return which[static_cast<std::size_t>(a)] == which[static_cast<std::size_t>(b)];
}

/// For rows begin .. end - 1 (at most tile_rows, of any requests) and their keys in [key_begin,
/// key_end): calls use(t, first, logits) for each row t with wants(t), tile by tile in ascending
/// order of positions. A decoded tile is used for all consecutive rows that see it.
template <class Wants, class Use>
void walk_index_rows(const IndexQuery& query, const IndexKeys& keys, const IndexRows& rows,
                     std::int64_t begin, std::int64_t end, std::int64_t key_begin,
                     std::int64_t key_end, std::int64_t tile_keys, const TileMemory& memory,
                     Wants wants, Use use) {
  const std::int64_t heads = padded_index_heads(query.heads);
  const auto seen = [&](std::int64_t t) {
    return std::min<std::int64_t>(key_end, rows.lens[static_cast<std::size_t>(t)]);
  };
  for (std::int64_t run = begin, run_end = begin; run < end; run = run_end) {
    std::int64_t longest = 0;
    for (; run_end < end && same_index_keys(keys, rows, run, run_end); ++run_end) {
      if (!wants(run_end) || seen(run_end) <= key_begin) continue;
      longest = std::max(longest, seen(run_end));
      const std::int64_t slot = run_end - begin;
      index_prepare(query.codes.data() + run_end * query.heads * query.dim,
                    query.weights.data() + run_end * query.heads, query.heads, query.dim,
                    memory.q + slot * heads * query.dim, memory.w + slot * heads);
    }
    for (std::int64_t first = key_begin; first < longest; first += tile_keys) {
      const std::int64_t tile_end = std::min(longest, first + tile_keys);
      load_index_keys(keys, rows, query.dim, run, first, tile_end - first, memory);
      for (std::int64_t t = run; t < run_end; ++t) {
        const std::int64_t n = std::min(tile_end, seen(t)) - first;
        if (!wants(t) || n <= 0) continue;
        const std::int64_t slot = t - begin;
        index_score(memory.q + slot * heads * query.dim, memory.w + slot * heads, query.heads,
                    query.dim, memory.keys, memory.scales, n, memory.logits);
        use(t, first, std::span<const float>(memory.logits, static_cast<std::size_t>(n)));
      }
    }
  }
}

}  // namespace lathe
