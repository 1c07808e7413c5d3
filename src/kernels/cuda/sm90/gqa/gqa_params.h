// Launch parameters of grouped-query attention, as plain values.
//
// M rows are the query rows of a request times the heads of a group: M row m of a request is query
// head m % group of a KV head and row m / group. block_m consecutive M rows are an M block. An M
// block with one KV head and the tiles of keys that it sees is a work item. An item costs its tiles
// plus item_cost, which pays for loading queries, storing outputs, and the matrix products that
// nothing overlaps. Workers share the cost of all items evenly: worker w gets w * share up to (w +
// 1) * share of
//
//   | block 0, head 0: item_cost, tiles | block 0, head 1 | ... | block 1, head 0 | ...
//   |------------ worker 0 -------------------|------- worker 1 ------------|---- ...
//
// so it shares at most its first item and its last one with other workers, and writes at most two
// partials: 2 w of an item that another worker begins, 2 w + 1 of one that others end.
//
// With pairs (GqaParams::pairs) an item has two neighbouring KV heads, and all that counts KV
// heads, the heads of a group and M rows counts pairs and the heads of both. An M block has whole
// query rows.
//
// With chunks (GqaParams::chunk) an M block has rows of one chunk, so all its rows see the keys
// from the chunk's first one on (GqaBlock::begin). Only the schedule knows chunks.
//
// With fixed cuts (GqaParams::pieces) no item is shared. Worker w computes the items that begin in
// its share. A request with many keys is cut into pieces by its own length alone: each piece is an
// M block of its own, and writes a partial for each KV head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/common/fast_div.h"
#include "kernels/cuda/common/lse_form.h"

namespace lathe::cuda {

/// Most keys of a request, and of a window: sums and differences of two fit 32 bits.
inline constexpr std::int32_t kGqaMostKeys = 1 << 30;

/// Arrivals at a stage's full barrier: of the lane that expects TMA's bytes, or where the producer
/// copies listed rows, of all lanes, when their copies are done, and of the lane that has stored
/// the mask.
inline constexpr int kGqaPageArrivals = 1, kGqaRowArrivals = 33;

/// Whether e4m3 pages are read by gqa_mma_fp8, the kernel for few rows: each warp's registers hold
/// outputs of all M rows.
constexpr bool gqa_is_mma_fp8(int key_dim, int value_dim, int block_m) {
  return key_dim == value_dim && key_dim <= 256 && key_dim * block_m <= 2048;
}

/// Keys of its tiles. m_rows: of a KV head. Two blocks of 16 M rows of 128 dims are all that an
/// SM's registers hold, so few warps share what a tile costs besides its keys: waits and row maxes.
constexpr int gqa_mma_fp8_tile(int dim, int m_rows) {
  return dim == 128 && m_rows == 16 ? 128 : 64;
}

/// Whether an item has a pair of KV heads. A tile of one e4m3 head of this many dims has rows of 64
/// bytes: half a line of L2, which then serves half as many bytes; and its few codes weigh little
/// next to what a tile costs besides. m_rows: most M rows of a request with one KV head. They fit a
/// block of gqa_mma_fp8.
inline constexpr int kGqaPairDim = 64;
constexpr bool gqa_has_pairs(int key_dim, int value_dim, int kv_heads, std::int64_t m_rows,
                             bool fp8) {
  return fp8 && key_dim == kGqaPairDim && value_dim == kGqaPairDim && kv_heads % 2 == 0 &&
         m_rows <= 32;
}

/// Whether a block has its M rows on M (gqa_m128), not swapped. Keys of 192 leave blocks of 64 M
/// rows swapped: one such block on an SM is faster where requests see few keys.
constexpr bool gqa_rows_on_m(int key_dim, int block_m, bool fp8) {
  return !fp8 && (block_m > 64 || (block_m == 64 && key_dim != 192));
}

/// Resident blocks of an SM. With two or more, where registers and shared memory allow, the
/// softmax, prologue and epilogue of one overlap the loads of the other. block_m: M rows of a KV
/// head.
constexpr int gqa_blocks_per_sm(int key_dim, int value_dim, int block_m, bool fp8) {
  if (fp8 && gqa_is_mma_fp8(key_dim, value_dim, block_m)) {
    return key_dim * block_m <= 1024 ? 3 : 2;
  }
  const bool large = block_m == 64 && !gqa_rows_on_m(key_dim, block_m, fp8);
  return value_dim > 128 || block_m > 64 || large ? 1 : 2;
}

/// Most M rows of a block of the swapped kernel: its outputs are in the registers of one
/// warpgroup.
constexpr int gqa_swapped_rows(int value_dim) { return value_dim > 256 ? 32 : 64; }
/// Whether blocks of 64 M rows are swapped.
constexpr bool gqa_swaps_64(int key_dim, int value_dim, bool fp8) {
  return gqa_swapped_rows(value_dim) == 64 && !gqa_rows_on_m(key_dim, 64, fp8);
}

/// Cost of an item of 128 M rows besides its tiles, in tiles of `tile` keys: measured. With 2 tiles
/// of 128 keys prompts without a prefix take 8 to 20 % longer, with 8 up to 15 %.
constexpr std::int32_t gqa_m128_item_cost(int tile) { return tile == 128 ? 4 : 5; }

/// Keys of a tile of 128 M rows.
constexpr int gqa_m128_tile(int key_dim, int value_dim) {
  return key_dim + value_dim <= 320 ? 128 : 64;
}

struct GqaBlock {
  std::int32_t request;  // row of the page table
  std::int32_t row;      // of the first M row: of q, or a slot (GqaParams::slot_rows)
  std::int32_t head;     // head in the group of the first M row
  std::int32_t m_rows;   // 1 to block_m
  std::int32_t limit;    // keys that the first query row sees; each later row sees one more; may be
                         // negative
  std::int32_t begin;    // first key
  std::int32_t tile;     // first tile with a key that some row sees
  std::int32_t tiles;    // at least 1; some of their keys may be missing
  std::int32_t keys;     // the last query row sees keys before this one
  std::int32_t partial;  // of the first KV head of a piece (GqaParams::pieces); -1: not a piece
};

struct GqaStart {
  std::int32_t block, head;
  std::int32_t tile;  // negative: -tile is what is left of the item's item_cost
  std::int64_t left;  // cost of the worker's work; 0: it has none
};

struct GqaTotals {
  std::int64_t cost;   // of all items
  std::int64_t share;  // of one worker
};

/// Made by the schedule kernel from a step's lengths. All layers with the same problem share it.
struct GqaSchedule {
  std::int32_t* request_blocks = nullptr;  // [requests + 1] M blocks before a request's
  GqaBlock* blocks = nullptr;              // [max_blocks]
  std::int64_t* costs = nullptr;           // [max_blocks + 1] cost of the items before an M block's
  GqaStart* starts = nullptr;              // [workers]
  GqaTotals* totals = nullptr;
};

struct GqaParams {
  GqaSchedule schedule;
  std::int32_t max_blocks = 0;
  std::int32_t workers = 0;
  std::int32_t block_m = 0;
  std::int32_t tile = 0;       // keys: 64 or 128
  std::int32_t item_cost = 0;  // in tiles
  // Fixed cuts: most pieces of a request. If more than 1, each request has at most one M block
  // besides, so with chunks it has one row. 0: workers share items, so an output's bits depend on
  // the whole batch.
  std::int32_t pieces = 0;
  std::int32_t piece_tiles = 0;  // least tiles of a piece

  std::int32_t requests = 0;
  const std::int32_t* q_indptr = nullptr;  // [requests + 1]
  const std::int32_t* kv_lens = nullptr;   // [requests]
  // Where requests share keys (gqa_shared.h). Requests then have keys from begins[] on, a multiple
  // of the page size.
  const std::int32_t* begins = nullptr;  // [requests]; null: 0
  // The "requests" are groups: their rows are slots and see all of the group's keys.
  const std::int32_t* slot_rows = nullptr;  // [slots] row of q; null: slots are rows of q
  const std::int32_t* tables = nullptr;     // [requests] row of the page table
  // Latents with keys that a list names: each row of q is a "request" with one row, and its keys
  // are those of its list. q_indptr and kv_lens are then not read.
  const std::int32_t* indices = nullptr;  // [q_rows, index_width] slots, or none
  std::int32_t index_width = 0;
  const std::int32_t* index_lengths = nullptr;  // [q_rows] used entries; null: all
  std::int32_t max_keys = 0;                    // most keys of a request; longer ones are cut to it
  std::int32_t window = kGqaMostKeys;           // keys that a row sees, its own included
  // Not 0: positions are divided into chunks of this many, whole pages, and a row sees no keys
  // before its own chunk.
  std::int32_t chunk = 0;
  bool pairs = false;         // gqa_has_pairs()
  std::int32_t kv_heads = 0;  // or pairs of them
  FastDiv group;              // heads of a KV head, or of a pair

  const std::uint16_t* q = nullptr;  // bf16 [q_rows, heads, head_dim]
  std::int64_t q_stride = 0;         // elements from row to row
  std::int32_t q_head = 0;           // elements of a head, where values are in keys
  std::int32_t q_rows = 0;

  const std::int32_t* table = nullptr;  // [requests, table_width] pages, or none
  std::int32_t table_width = 0;
  FastDiv page_size;
  std::int32_t pages = 0;
  std::int64_t page_stride = 0;       // bytes
  std::int64_t token_bytes = 0;       // of all heads' keys
  std::int64_t value_bytes = 0;       // of all heads' values
  const std::byte* keys = nullptr;    // of the first page; bf16 or e4m3 [page, token, kv head, dim]
  const std::byte* values = nullptr;  // of the first page, in the keys' format
  bool once = false;                  // few rows share a key: L2 may evict keys first

  float scale = 0;              // of scores, times log2(e) and the keys' scale
  float value_scale = 1;        // of values
  const float* sink = nullptr;  // [heads] or null

  void* out = nullptr;  // bf16 or f32 [q_rows, heads, value dim]
  bool out_f32 = false;
  std::int64_t out_stride = 0;  // elements from row to row
  float* lse = nullptr;         // [q_rows, heads] or null
  std::int64_t lse_stride = 0;
  LseForm lse_form;

  // [2 workers, block_m, value dim], or with fixed cuts [max_blocks, kv_heads, block_m, value dim];
  // normalized.
  float* partial_out = nullptr;
  float* partial_lse = nullptr;  // the same without value dim; log2
};

/// Joins the parts of rows of requests that share keys (gqa_shared.h).
struct GqaJoin {
  GqaParams groups, requests;
  const std::int32_t* row_requests = nullptr;  // [rows]
  const std::int32_t* parts = nullptr;         // [rows, levels] {slot, group}
  std::int32_t levels = 0;
  std::int32_t rows = 0;
  std::int32_t value_dim = 0;
  const float* sink = nullptr;  // [heads] or null
  void* out = nullptr;          // as GqaParams::out
  bool out_f32 = false;
  std::int64_t out_stride = 0;
  float* lse = nullptr;
  std::int64_t lse_stride = 0;
  LseForm lse_form;
};

}  // namespace lathe::cuda
