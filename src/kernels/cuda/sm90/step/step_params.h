// Parameters of the step kernels: plain values; all pointers are to device memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fast_div.h"
#include "kernels/cuda/common/scan.h"

namespace lathe::cuda {

inline constexpr int kStepThreads = 256;
inline constexpr int kBlockRows = 256;  // rows of a step per block

/// How a block's threads fill rows of a table: 2^shift threads per row.
struct RowLanes {
  std::int32_t shift = 8;

  LATHE_HD std::int32_t lanes() const { return 1 << shift; }
  LATHE_HD std::int32_t rows(int threads = kStepThreads) const { return threads >> shift; }
};

/// The page lists of requests: request r has pages[indptr[r], indptr[r + 1]).
struct ListsParams {
  const std::int64_t* indptr = nullptr;  // [requests + 1]
  const std::int32_t* pages = nullptr;   // [page_count]
  std::int64_t page_count = 0;
  std::int64_t requests = 0;
  std::int32_t pool_pages = 0;  // a page outside [0, pool_pages) is a hole
  FastDiv page_size;
};

/// out[r, i] = page i of request r, or -1 after its last page (with lens: after the page of its
/// last token).
struct PageTableParams {
  ListsParams lists;
  const std::int32_t* lens = nullptr;  // [requests] tokens; null: all pages
  std::int32_t* out = nullptr;         // [rows, width]
  std::int64_t rows = 0;               // rows past the requests are holes
  std::int64_t width = 0;
  RowLanes lanes;
};

/// out[r, i] = slot of position starts[r] + i of request r for i < lengths[r], else -1.
struct SlotTableParams {
  ListsParams lists;
  const std::int32_t* lengths = nullptr;  // [requests]
  const std::int32_t* starts = nullptr;   // [requests]; null: 0
  std::int32_t* out = nullptr;            // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  RowLanes lanes;
};

/// out[i] = sum of the first i values; out[count] = sum of all. A value is ceil(n / divisor) of the
/// given number n, or 0 if n is negative.
struct PrefixParams {
  const std::int32_t* values = nullptr;  // [count]
  std::int64_t count = 0;
  FastDiv divisor;
  std::int64_t* tile_sums = nullptr;  // [tiles], used if count exceeds a tile
  std::int64_t* out = nullptr;        // [count + 1], or null
  std::int32_t* out32 = nullptr;      // as out, in 32 bits; or null
};

/// items[indptr[r] + i] of a ragged list; entries past indptr[requests] become holes.
struct RaggedListParams {
  ListsParams lists;
  const std::int64_t* indptr = nullptr;  // [requests + 1] of the items
  const std::int32_t* starts = nullptr;  // [requests] tokens; null: 0
  std::int32_t* items = nullptr;         // [room]
  std::int64_t room = 0;
  bool of_pages = false;  // items are pages; false: slots
};

/// Computes out[t, i] from positions[t, i]; a position past lens[t] is a hole.
struct TransformParams {
  const std::int32_t* positions = nullptr;  // [rows, width]
  const std::int32_t* lens = nullptr;       // [rows] or null
  bool to_slots = false;                    // false: to rows of a compact buffer
  const std::int32_t* row_value = nullptr;  // [rows] the row's request, or its offset
  const std::int32_t* table = nullptr;      // [requests, table_width], for slots
  std::int64_t requests = 0;
  std::int64_t table_width = 0;
  std::int64_t limit = 0;       // pages of the pool, or rows of the compact buffer
  std::int32_t* out = nullptr;  // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  FastDiv page_size;
  RowLanes lanes;
};

/// lathe::CombineLists.
struct CombineParams {
  const std::int32_t* positions = nullptr;  // [rows]
  const std::int32_t* entries = nullptr;    // [rows, entry_width]; null: all visible ones
  const std::int32_t* entry_base = nullptr;
  const std::int32_t* window_base = nullptr;
  const std::int32_t* window_start = nullptr;
  std::int32_t* out = nullptr;      // [rows, width]
  std::int32_t* lengths = nullptr;  // [rows]
  std::int64_t rows = 0;
  std::int64_t entry_width = 0;
  std::int64_t width = 0;
  std::int64_t compact_rows = 0;
  std::int32_t window = 0;
  std::int32_t ratio = 1;
};

/// lathe::plan_work. A row with an invalid range has no items.
struct WorkParams {
  const std::int32_t* counts = nullptr;  // [rows]
  const std::int32_t* firsts = nullptr;  // [rows] or null
  std::int64_t rows = 0;
  std::int64_t workers = 1;
  double per_worker = 1;          // 1 / workers
  FastDiv key_block;              // size in keys; a key block is never split
  bool fixed = false;             // one item per key block
  std::int32_t* items = nullptr;  // [room, 4]: row, first, count, split
  std::int64_t room = 0;
  std::int64_t* row_items = nullptr;     // [rows + 1]
  std::int64_t* worker_items = nullptr;  // [workers + 1]
  std::int64_t* tile_sums = nullptr;     // [2 * tiles], used if rows exceed a tile
};

/// The requests of a step: request r has rows[r] new rows after cached[r] keys.
struct BatchParams {
  const std::int32_t* cached = nullptr;   // [requests]
  const std::int32_t* rows = nullptr;     // [requests]
  const std::uint8_t* padding = nullptr;  // [requests]; null: none
  std::int64_t requests = 0;
  std::int32_t window = 0;   // 0: every key is seen
  bool two_sources = false;  // an entry per `ratio` keys, in separate pages
  FastDiv ratio;
  ListsParams main;
  ListsParams compressed;
};

/// A page table of a step: the pages with the requests' keys or entries.
struct StepTableParams {
  std::int32_t* out = nullptr;  // [requests, width]
  std::int64_t width = 0;
  std::int32_t blocks = 0;
  RowLanes lanes;
};

/// The rows of a step's requests. Outputs are [rows] unless noted; a null output is not written.
struct StepRowsParams {
  BatchParams batch;
  std::int64_t rows = 0;             // capacity; rows past q_indptr[requests] are padding
  std::int32_t top_k = 0;            // 0: every key is attended
  std::int32_t* q_indptr = nullptr;  // [requests + 1]; read if requests exceed a tile
  std::int32_t* kv_lens = nullptr;   // [requests]
  std::int32_t* counts = nullptr;    // StepCounts
  std::int32_t* positions = nullptr;
  std::int32_t* row_request = nullptr;
  std::int32_t* row_lens = nullptr;
  std::int32_t* out_slots = nullptr;
  std::int32_t* attend_lens = nullptr;
  std::int32_t* index_lens = nullptr;
  std::uint8_t* identity = nullptr;
  std::int32_t* window_lens = nullptr;
  std::int32_t* compressed_lens = nullptr;
  std::int32_t* compressed_out_slots = nullptr;
  std::int32_t* window_slots = nullptr;  // [rows, window_width]
  std::int64_t window_width = 0;
  StepTableParams table;
  StepTableParams compressed_table;
  // Blocks that process rows. Blocks for windows, counts and tables come after them.
  std::int32_t row_blocks = 0;
  std::int32_t window_blocks = 0;
};

constexpr std::int64_t scan_tiles(std::int64_t count) {
  return count == 0 ? 1 : (count + kScanTile - 1) / kScanTile;
}

/// Blocks for `count` elements at `per_block` each, limited to what occupies the GPU; beyond that,
/// threads process several elements.
constexpr std::int32_t some_blocks(std::int64_t count, std::int64_t per_block = kStepThreads,
                                   std::int64_t most = 132 * 8) {
  const std::int64_t all = (count + per_block - 1) / per_block;
  return static_cast<std::int32_t>(all < most ? all : most);
}

/// Rows per thread for a balanced list: 1 if there are no more rows than threads.
constexpr int work_rows_per_thread(const WorkParams& p) {
  return p.rows <= kScanThreads ? 1 : kScanPerThread;
}

/// Blocks that write the items of a tile of rows: enough for an item per thread if there is an item
/// per key block, otherwise one per 128 threads' rows.
constexpr unsigned work_slices(const WorkParams& p) {
  const std::int64_t most = 132 / scan_tiles(p.rows);
  const std::int64_t rows = p.rows < kScanTile ? p.rows : kScanTile;
  const int slices = p.fixed ? some_blocks(p.room, kScanThreads, most)
                             : some_blocks(rows, 128 * work_rows_per_thread(p), most);
  return slices < 1 ? 1 : static_cast<unsigned>(slices);
}

constexpr unsigned step_rows_blocks(const StepRowsParams& p) {
  return static_cast<unsigned>(p.row_blocks + p.table.blocks + p.compressed_table.blocks +
                               p.window_blocks + (p.counts != nullptr ? 1 : 0));
}

}  // namespace lathe::cuda
