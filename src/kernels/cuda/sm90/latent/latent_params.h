// What a launch of latent attention is told, in plain values.
//
// Lines (a query row's head) that see the same keys stand together: all heads of one row that has an
// index list, or all rows and heads of a request. A unit is such a set, and a work item (attn/
// work_list.h) is a unit and a range of its keys. Units are cut into tiles of lines; the tiles of a
// unit are done by neighbouring blocks, at the same time, so that the second one finds the keys in L2, or
// by a cluster of two that shares its copies.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kLatentTile = 64;  // keys

/// How a part lies (partials.cuh): as few heads' kernel for bf16, those with lines on the M side, or the turned ones
/// write it.
enum class PartOrder { rows, wide, turned };

/// The device's WorkItem.
struct LatentItem {
  std::int32_t unit;
  std::int32_t first;  // key, a multiple of kLatentTile
  std::int32_t count;
  std::int32_t split;
};

/// Keys by an index list of slots, by an index list of positions and a page table, or by a page table.
struct LatentSource {
  const std::byte* pages = nullptr;
  std::int64_t page_stride = 0;  // bytes
  FastDiv page_size;
  std::int32_t pages_count = 0;
  std::int64_t scales = 0;                // v4_fp8: first byte of a page's scales
  const std::int32_t* indices = nullptr;  // [rows, width]
  std::int32_t width = 0;                 // entries of an index row
  const std::int32_t* lengths = nullptr;  // [rows] entries that count, or null
  const std::int32_t* table = nullptr;    // [requests, table_width] pages
  std::int32_t table_width = 0;
};

struct LatentParams {
  const LatentItem* items = nullptr;           // all workers'
  const std::int64_t* worker_items = nullptr;  // [workers + 1]
  const std::int64_t* unit_items = nullptr;    // [units + 1]
  std::int32_t units = 0;
  std::int32_t workers = 0;
  // Of lines, in the largest unit. Where tiles have fewer than 64 lines and there are several, each is of one row.
  std::int32_t tiles = 1;

  const void* q = nullptr;    // bf16 or e4m3 [rows, heads, qk_dim]
  std::int64_t q_stride = 0;  // elements from row to row
  std::int32_t q_rows = 0;
  std::int32_t heads = 0;
  FastDiv by_heads;
  const std::int32_t* q_indptr = nullptr;     // [requests + 1]; dense
  const std::int32_t* kv_lens = nullptr;      // [requests]
  const std::int32_t* row_request = nullptr;  // [rows]; with positions
  bool dense = false;                         // units are requests, else rows
  bool once = false;                          // few rows share a key, so L2 need not keep keys
  bool passing = false;                       // L2 need not keep queries and outputs, but keys
  bool early = false;                         // launched before the kernel ahead is done
  const std::int32_t* overflow = nullptr;  // not null: void unless (*overflow != 0) == overflowed
  bool overflowed = false;

  LatentSource main, extra;  // extra.indices null: none

  float scale = 0;              // of scores, times log2(e) and the scales of q and keys
  float value_scale = 1;        // of values
  const float* sink = nullptr;  // [heads] or null

  std::uint16_t* out = nullptr;  // bf16 [rows, heads, v_dim]
  std::int64_t out_stride = 0;   // elements from row to row
  float* lse = nullptr;          // [rows, heads] or null
  std::int64_t lse_stride = 0;
  bool cut = false;  // units may have several items, so that a combination follows
  float* part_out =
      nullptr;  // [items, tiles] parts (partials.cuh): normalized, of units with several items
  float* part_lse = nullptr;  // [items, tiles * tile_lines] log2
};

}  // namespace lathe::cuda
