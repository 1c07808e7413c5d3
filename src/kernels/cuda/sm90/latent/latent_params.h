// Launch parameters of latent attention, as plain values.
//
// M rows (query row x head) that see the same keys are a work tile: all heads of a row with an
// index list, or all rows and heads of a request. A work item (attn/work_list.h) is a work tile and
// a range of its keys. A work tile consists of M blocks. Neighbouring thread blocks compute them at
// the same time, so that the second finds the keys in L2, or as a cluster of two that multicasts
// keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/fast_div.h"
#include "kernels/cuda/common/lse_form.h"
#include "kernels/cuda/sm90/latent/schedule/share.h"

namespace lathe::cuda {

inline constexpr int kLatentTile = 64;  // keys

/// The order of a partial's chunks (partials.cuh), as written by swap_ab on bf16 (rows), m64 on
/// bf16 (m64) or the other kernels with A and B swapped (swapped).
enum class PartialLayout { rows, m64, swapped };

/// A source of keys: an index list of slots, an index list of positions with a page table, or a
/// page table.
struct LatentSource {
  const std::byte* pages = nullptr;
  std::int64_t page_stride = 0;  // bytes
  FastDiv page_size;
  std::int32_t pages_count = 0;
  std::int64_t scales = 0;                // v4_fp8: first byte of a page's scales
  const std::int32_t* indices = nullptr;  // [rows, width]
  std::int32_t width = 0;                 // entries of an index row
  const std::int32_t* lengths = nullptr;  // [rows] used entries of each list, or null
  const std::int32_t* table = nullptr;    // [requests, table_width] pages
  std::int32_t table_width = 0;
};

struct LatentParams {
  const LatentItem* items = nullptr;           // of all workers
  const std::int64_t* worker_items = nullptr;  // [workers + 1]
  // For a list made by plan_work(): the items, and partials, of work tile t are [t] to [t + 1].
  const std::int64_t* work_tile_items = nullptr;  // [work_tiles + 1]
  // For a list that the device made from lengths, else null.
  const LatentSplitTile* split_tiles = nullptr;  // [split_last + 1] split, or without keys
  std::int32_t split_last = 0;                   // always an end mark
  std::int32_t work_tiles = 0;
  std::int32_t workers = 0;
  // M blocks of the largest work tile. With several M blocks of fewer than 64 rows, each is within
  // one query row.
  std::int32_t m_blocks = 1;

  const void* q = nullptr;    // bf16 or e4m3 [rows, heads, qk_dim]
  std::int64_t q_stride = 0;  // elements from row to row
  std::int32_t q_rows = 0;
  std::int32_t heads = 0;
  FastDiv by_heads;
  const std::int32_t* q_indptr = nullptr;     // [requests + 1]; if dense
  const std::int32_t* kv_lens = nullptr;      // [requests]
  const std::int32_t* row_request = nullptr;  // [rows]; if lists hold positions
  bool dense = false;                         // work tiles are requests, else rows
  bool once = false;                          // few rows share a key: L2 may evict keys first
  bool passing = false;                       // L2 may evict q and outputs first, but not keys
  bool early = false;                         // launched before the previous kernel has finished
  const std::int32_t* overflow = nullptr;  // not null: run only if (*overflow != 0) == overflowed
  bool overflowed = false;

  LatentSource main, extra;  // extra.indices null: no second source

  float scale = 0;        // of scores, times log2(e) and the scales of q and keys
  float value_scale = 1;  // of values
  // For e4m3 q, [1] each, or null: a further factor of queries, and of keys and values.
  const float* q_scale = nullptr;
  const float* key_scale = nullptr;
  const float* sink = nullptr;  // [heads] or null

  std::uint16_t* out = nullptr;  // bf16 [rows, heads, v_dim]
  std::int64_t out_stride = 0;   // elements from row to row
  float* lse = nullptr;          // [rows, heads] or null
  std::int64_t lse_stride = 0;
  LseForm lse_form;
  bool cut = false;  // work tiles may be split; a combine follows
  float* partial_out =
      nullptr;  // [partials, m_blocks] (partials.cuh): normalized, of split work tiles
  float* partial_lse = nullptr;  // [partials, m_blocks * block_m] log2
};

}  // namespace lathe::cuda
