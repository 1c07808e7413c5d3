// What the step kernels are launched with: plain values. All pointers are to the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/common/fast_div.h"

namespace lathe::cuda {

inline constexpr int kStepThreads = 256;
inline constexpr int kScanThreads = 1024;
inline constexpr int kScanPerThread = 4;
inline constexpr int kScanTile = kScanThreads * kScanPerThread;  // values that a block scans

/// Threads of a block over rows of a table: 2^shift of them take a row together.
struct RowLanes {
  std::int32_t shift = 8;

  LATHE_HD std::int32_t lanes() const { return 1 << shift; }
  LATHE_HD std::int32_t rows() const { return kStepThreads >> shift; }  // of a block
};

/// The page lists of requests: request r has pages[indptr[r], indptr[r + 1]).
struct ListsParams {
  const std::int64_t* indptr = nullptr;  // [requests + 1]
  const std::int32_t* pages = nullptr;
  std::int64_t requests = 0;
  std::int64_t pool_pages = 0;  // a page that is not in [0, pool_pages) is a hole
  FastDiv page_size;
};

/// out[r, i] = page i of request r, -1 past its pages, and past those that lens[r] tokens lie on.
struct PageTableParams {
  ListsParams lists;
  const std::int32_t* lens = nullptr;  // [requests] tokens, or null: all pages
  std::int32_t* out = nullptr;         // [rows, width]
  std::int64_t rows = 0;               // those past the requests are holes
  std::int64_t width = 0;
  RowLanes lanes;
};

/// out[r, i] = slot of position starts[r] + i of request r for i < lengths[r], else -1.
struct SlotTableParams {
  ListsParams lists;
  const std::int32_t* lengths = nullptr;  // [requests]
  const std::int32_t* starts = nullptr;   // [requests] or null: 0
  std::int32_t* out = nullptr;            // [rows, width]
  std::int64_t rows = 0;
  std::int64_t width = 0;
  RowLanes lanes;
};

/// out[i] = sum of the first i values; out[count] = sum of all. A value is ceil(n / divisor) of the
/// number given, 0 where that is negative.
struct PrefixParams {
  const std::int32_t* values = nullptr;  // [count]
  std::int64_t count = 0;
  FastDiv divisor;
  std::int64_t* sums = nullptr;   // [tiles], used where count exceeds a tile
  std::int64_t* out = nullptr;    // [count + 1], or null
  std::int32_t* out32 = nullptr;  // the same in 32 bits, or null
};

/// items[indptr[r] + i] of a ragged list; those past indptr[requests] become holes.
struct RaggedParams {
  ListsParams lists;
  const std::int64_t* indptr = nullptr;  // [requests + 1] of the items
  const std::int32_t* starts = nullptr;  // [requests] tokens, or null: 0
  std::int32_t* items = nullptr;         // [room]
  std::int64_t room = 0;
  bool of_pages = false;  // items are pages, else slots
};

/// out[t, i] from positions[t, i]; a position past lens[t] is a hole.
struct TransformParams {
  const std::int32_t* positions = nullptr;  // [rows, width]
  const std::int32_t* lens = nullptr;       // [rows] or null
  bool to_slots = false;                    // else to rows of a compact buffer
  const std::int32_t* row_value = nullptr;  // [rows]: the row's request, or its offset
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

/// lathe::plan_work. A row whose range is no range has no items.
struct WorkParams {
  const std::int32_t* counts = nullptr;  // [rows]
  const std::int32_t* firsts = nullptr;  // [rows] or null
  std::int64_t rows = 0;
  std::int64_t workers = 1;
  std::int32_t unit = 1;          // keys that are never cut
  bool fixed = false;             // an item per unit
  std::int32_t* items = nullptr;  // [room, 4]: row, first, count, split
  std::int64_t room = 0;
  std::int64_t* row_items = nullptr;     // [rows + 1]
  std::int64_t* worker_items = nullptr;  // [workers + 1]
  std::int64_t* row_units = nullptr;     // [rows + 1] units before each row
  std::int64_t* sums = nullptr;          // [2 * tiles]
};

/// The rows of a step's requests.
struct StepRowsParams {
  ListsParams lists;
  const std::int32_t* q_indptr = nullptr;  // [requests + 1]
  const std::int32_t* cached = nullptr;    // [requests]
  const std::uint8_t* padding = nullptr;   // [requests] or null: none
  std::int64_t rows = 0;                   // room; those past q_indptr[requests] are padding
  std::int32_t top_k = 0;                  // 0: every key is attended
  std::int32_t* positions = nullptr;       // [rows]
  std::int32_t* row_request = nullptr;     // [rows]
  std::int32_t* row_lens = nullptr;        // [rows]
  std::int32_t* out_slots = nullptr;       // [rows]
  std::int32_t* attend_lens = nullptr;     // [rows]
  std::uint8_t* identity = nullptr;        // [rows] or null
  std::int32_t* kv_lens = nullptr;         // [requests]
  std::int32_t* table = nullptr;           // [requests, width]
  std::int64_t width = 0;
  std::int32_t row_blocks = 0;  // blocks that take rows; the others take the table
  RowLanes lanes;
};

constexpr std::int64_t scan_tiles(std::int64_t count) {
  return count == 0 ? 1 : (count + kScanTile - 1) / kScanTile;
}

}  // namespace lathe::cuda
