// A step's metadata on the GPU: layout/pages/page_table.h, layout/pages/index_lists.h,
// attn/index_transform.h, attn/work_list.h and step/step.h, with the same structures, whose spans
// point to the device, and the same results.
//
// As with the codecs, the host cannot look at what lies on the device. Counts are checked before
// anything is launched; contents that the CPU would reject list no key here: an invalid page,
// position, request or range becomes a hole, and what exceeds the capacity is counted and not
// stored. Nothing waits or allocates; a captured call replays over other contents. A batch with
// fewer rows or requests than a capture has room for is padded with lengths of 0 and -1. Launches
// may begin before the previous one on the stream ends; they wait for its end.
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
  std::span<const std::int64_t> indptr;  // [requests + 1], rising from 0
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
  std::span<Index> items;          // those past indptr[requests] become holes
};

/// Scratch of the builders that sum over a list, in std::int64_t.
std::int64_t scan_workspace(std::int64_t count);
std::int64_t work_workspace(std::int64_t rows);

/// The pages of each request, -1 past them; with `lens`, only those that the first lens[r] tokens
/// lie on. lens: [requests] or empty. out.requests may exceed the lists': such rows are holes.
Result<void> page_table(const DevicePageLists& lists, PoolShape pool,
                        std::span<const std::int32_t> lens, DeviceTable<PageId> out,
                        cudaStream_t stream,
                        std::source_location where = std::source_location::current());

/// workspace: scan_workspace(requests) entries.
Result<void> ragged_slots(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceRagged<Slot> out, std::span<std::int64_t> workspace,
                          cudaStream_t stream,
                          std::source_location where = std::source_location::current());
/// A start that is not page-aligned counts from the beginning of its page.
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
/// With all_entries, entries past entry_width are left out.
Result<void> combine_index_lists(const CombineLists& lists, std::span<RaggedRow> out,
                                 std::span<std::int32_t> lengths, cudaStream_t stream,
                                 std::source_location where = std::source_location::current());

/// buffers.items at a multiple of 16 bytes; workspace: work_workspace(rows) entries.
/// row_items[rows] says how many items there are; it exceeds the room where that was too small. One
/// launch for up to 4096 rows, three for more, two with fixed splits.
Result<void> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                       const WorkBuffers& buffers, std::span<std::int64_t> workspace,
                       cudaStream_t stream,
                       std::source_location where = std::source_location::current());

/// What a batch brings: request r has rows[r] new tokens after cached[r] ones.
struct StepRowsInput {
  DevicePageLists lists;  // of the main pool
  PoolShape pool;
  std::span<const std::int32_t> cached;   // [requests]
  std::span<const std::int32_t> rows;     // [requests]
  std::span<const std::uint8_t> padding;  // [requests] or empty: none
  std::int32_t top_k = 0;                 // of a sparse problem; 0: every key is attended
  // window_compressed.
  std::int32_t window = 0;           // 0: no window
  std::int32_t ratio = 0;            // tokens per compressed entry; 0: one source
  DevicePageLists compressed_lists;  // of the compressed pool, with a ratio
  PoolShape compressed_pool;
};

/// The numbers of StepView that depend on the batch.
struct StepCounts {
  std::int32_t rows = 0;
  std::int32_t max_rows = 0;
  std::int32_t max_context = 0;
  std::int32_t selecting_rows = 0;
};

/// The arrays of StepView that follow from it. Rows past the last request's are padding: no
/// position, no request, no key. Tables have as many rows as there are requests, window_slots as
/// there are rows, or no columns.
struct StepRowsOutput {
  std::span<std::int32_t> q_indptr;  // [requests + 1]
  std::span<std::int32_t> kv_lens;   // [requests]
  DeviceTable<PageId> page_table;    // of the pages that keys lie on
  std::span<LocalPos> positions;     // [rows], as all below
  std::span<std::int32_t> row_request;
  std::span<std::int32_t> row_lens;
  std::span<Slot> out_slots;
  std::span<std::int32_t> attend_lens;
  std::span<std::uint8_t> identity;    // or empty
  std::span<std::int32_t> index_lens;  // or empty
  StepCounts* counts = nullptr;        // on the device, or null

  // With a window; empty without.
  std::span<std::int32_t> window_lens;
  DeviceTable<Slot> window_slots;  // of `window` columns or more
  // With a ratio; empty without.
  std::span<std::int32_t> compressed_lens;
  std::span<Slot> compressed_out_slots;
  DeviceTable<PageId> compressed_table;
};
/// One launch for up to 4096 requests, three for more. workspace: scan_workspace(requests) entries.
Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                       std::span<std::int64_t> workspace, cudaStream_t stream,
                       std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
