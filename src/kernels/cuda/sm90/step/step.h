// A step's metadata on the GPU: the functions of layout/pages/page_table.h,
// layout/pages/index_lists.h, attn/index_transform.h, attn/work_list.h and step/step.h, with the
// same structures and results. All spans point to device memory.
//
// The host cannot read device memory without waiting, so only counts are checked before a launch.
// Contents that the CPU would reject do not name a key here: an invalid page, position, request or
// range becomes a hole, and items beyond the capacity are counted but not stored. Nothing waits or
// allocates; a captured call replays over other contents. If a batch has fewer rows or requests
// than the capture, pad it with lengths of 0 and -1. Launches may start before the previous one on
// the stream ends; they wait for its end.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>
#include <span>

#include "attn/index_transform.h"
#include "attn/work_list.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pages/index_lists.h"

namespace lathe::cuda {

/// Request r has pages[indptr[r], indptr[r + 1]).
struct DevicePageLists {
  std::span<const std::int64_t> indptr;  // [requests + 1], ascending from 0
  std::span<const PageId> pages;

  std::int64_t requests() const { return std::ssize(indptr) - 1; }
};

template <class Index>
struct DeviceTable {
  Index* data = nullptr;  // [requests, width]
  std::int64_t requests = 0;
  std::int64_t width = 0;

  IndexTableView<Index> view() const { return {data, requests, width}; }
};

template <class Index>
struct DeviceRagged {
  std::span<std::int64_t> indptr;  // [requests + 1]
  std::span<Index> items;          // entries past indptr[requests] become holes
};

/// Scratch in std::int64_t for the builders that sum over a list.
std::int64_t scan_workspace(std::int64_t count);
std::int64_t work_workspace(std::int64_t rows);

/// The pages of each request, then -1. With `lens`, only the pages of the first lens[r] tokens.
/// lens: [requests] or empty. out.requests may exceed the lists' requests; the extra rows are
/// holes.
Result<void> page_table(const DevicePageLists& lists, PoolShape pool,
                        std::span<const std::int32_t> lens, DeviceTable<PageId> out,
                        cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// workspace: scan_workspace(requests) entries.
Result<void> ragged_slots(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceRagged<Slot> out, std::span<std::int64_t> workspace,
                          cudaStream_t stream,
                          std::source_location where = std::source_location::current());
/// A start that is not page-aligned is rounded down to the start of its page.
Result<void> ragged_pages(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceRagged<PageId> out, std::span<std::int64_t> workspace,
                          cudaStream_t stream,
                          std::source_location where = std::source_location::current());
Result<void> slot_table(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                        DeviceTable<Slot> out, cudaStream_t stream,
                        std::source_location where = std::source_location::current());

Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                            PageTableView table, PoolShape pool, std::span<Slot> out,
                            cudaStream_t stream,
                            std::source_location where = std::source_location::current());
Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                             std::int64_t compact_rows, std::span<RaggedRow> out,
                             cudaStream_t stream,
                             std::source_location where = std::source_location::current());
/// With all_entries, entries past entry_width are omitted.
Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                 std::span<std::int32_t> lengths, cudaStream_t stream,
                                 std::source_location where = std::source_location::current());

/// buffers.items must be aligned to 16 bytes; workspace: work_workspace(rows) entries.
/// row_items[rows] is the number of items, which exceeds buffers.items.size() if that was too
/// small. One launch for up to 4096 rows, three for more, two with fixed splits.
Result<void> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                       const WorkBuffers& buffers, std::span<std::int64_t> workspace,
                       cudaStream_t stream,
                       std::source_location where = std::source_location::current());

/// The requests of a batch: request r has rows[r] new tokens after cached[r] ones.
struct StepRowsInput {
  DevicePageLists lists;  // pages of the main pool
  PoolShape pool;
  std::span<const std::int32_t> cached;   // [requests]
  std::span<const std::int32_t> rows;     // [requests]
  std::span<const std::uint8_t> padding;  // [requests] or empty: none
  std::int32_t top_k = 0;                 // of a sparse problem; 0: every key is attended
  // Only for window_compressed:
  std::int32_t window = 0;           // 0: no window
  std::int32_t ratio = 0;            // tokens per compressed entry; 0: one source
  DevicePageLists compressed_lists;  // pages of the compressed pool, with a ratio
  PoolShape compressed_pool;
};

/// The numbers of StepView that depend on the batch.
struct StepCounts {
  std::int32_t rows = 0;
  std::int32_t max_rows = 0;
  std::int32_t max_context = 0;
  std::int32_t selecting_rows = 0;
};

/// The arrays of StepView for a batch. Rows after the last request's are padding: no position,
/// request or keys. A table has a row per request, window_slots a row per batch row; either may
/// have no columns.
struct StepRowsOutput {
  std::span<std::int32_t> q_indptr;  // [requests + 1]
  std::span<std::int32_t> kv_lens;   // [requests]
  DeviceTable<PageId> page_table;    // pages with the request's keys
  std::span<LocalPos> positions;     // [rows], as are the lists below
  std::span<std::int32_t> row_request;
  std::span<std::int32_t> row_lens;
  std::span<Slot> out_slots;
  std::span<std::int32_t> attend_lens;
  std::span<std::uint8_t> identity;    // or empty
  std::span<std::int32_t> index_lens;  // or empty
  StepCounts* counts = nullptr;        // on the device, or null

  // With a window; otherwise empty.
  std::span<std::int32_t> window_lens;
  DeviceTable<Slot> window_slots;  // `window` columns or more
  // With a ratio; otherwise empty.
  std::span<std::int32_t> compressed_lens;
  std::span<Slot> compressed_out_slots;
  DeviceTable<PageId> compressed_table;
};
/// One launch for up to 4096 requests, three for more. workspace: scan_workspace(requests) entries.
Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                       std::span<std::int64_t> workspace, cudaStream_t stream,
                       std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
