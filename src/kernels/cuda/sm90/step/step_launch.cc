#include "kernels/cuda/sm90/step/step_launch.h"

#include <algorithm>
#include <bit>

namespace lathe::cuda {
namespace {

static_assert(sizeof(WorkItem) == 16, "an item is stored as four words");

template <class Index>
const std::int32_t* words(std::span<const Index> list) {
  return list.empty() ? nullptr : &list.data()->value;
}
template <class Index>
std::int32_t* words(Index* list) {
  return list == nullptr ? nullptr : &list->value;
}
ListsParams lists_params(const DevicePageLists& lists, PoolShape pool) {
  return {lists.indptr.data(),
          words(lists.pages),
          std::ssize(lists.pages),
          lists.requests(),
          static_cast<std::int32_t>(pool.pages),
          FastDiv(pool.page_size)};
}

template <class T>
T* or_null(std::span<T> list) {
  return list.empty() ? nullptr : list.data();
}

RowLanes lanes_for(std::int64_t width, int threads = kStepThreads) {
  const auto most = static_cast<std::uint64_t>(std::clamp<std::int64_t>(width, 1, threads));
  return {std::countr_zero(std::bit_ceil(most))};
}

BatchParams batch_params(const StepRowsInput& in) {
  BatchParams p;
  p.cached = in.cached.data();
  p.rows = in.rows.data();
  p.padding = or_null(in.padding);
  p.requests = in.lists.requests();
  p.window = in.window;
  p.two_sources = in.ratio > 0;
  p.main = lists_params(in.lists, in.pool);
  if (p.two_sources) {
    p.ratio = FastDiv(in.ratio);
    p.compressed = lists_params(in.compressed_lists, in.compressed_pool);
  }
  return p;
}

StepTableParams table_params(const DeviceTable<PageId>& table, std::int64_t requests) {
  StepTableParams p{words(table.data), table.width, 0, lanes_for(table.width, kScanThreads)};
  const std::int64_t rows = p.lanes.rows(kScanThreads);
  if (table.width > 0) p.blocks = static_cast<std::int32_t>((requests + rows - 1) / rows);
  return p;
}

}  // namespace

PageTableParams page_table_params(const DevicePageLists& lists, PoolShape pool,
                                  std::span<const std::int32_t> lens, DeviceTable<PageId> out) {
  return {lists_params(lists, pool), or_null(lens), words(out.data), out.requests, out.width,
          lanes_for(out.width)};
}

SlotTableParams slot_table_params(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                                  DeviceTable<Slot> out) {
  return {lists_params(lists, pool), ranges.lengths.data(), or_null(ranges.starts),
          words(out.data),           out.requests,          out.width,
          lanes_for(out.width)};
}

PrefixParams prefix_params(std::span<const std::int32_t> values, std::int64_t divisor,
                           std::span<std::int64_t> workspace) {
  PrefixParams p;
  p.values = values.data();
  p.count = std::ssize(values);
  p.divisor = FastDiv(divisor);
  p.tile_sums = workspace.data();
  return p;
}

RaggedListParams ragged_list_params(const DevicePageLists& lists, PoolShape pool,
                                    TokenRanges ranges) {
  RaggedListParams p;
  p.lists = lists_params(lists, pool);
  p.starts = or_null(ranges.starts);
  return p;
}

TransformParams transform_params(const LocalLists& lists, std::span<const std::int32_t> row_value,
                                 std::int32_t* out) {
  TransformParams p;
  p.positions = words(lists.positions);
  p.lens = or_null(lists.lens);
  p.row_value = row_value.data();
  p.out = out;
  p.rows = std::ssize(row_value);
  p.width = lists.width;
  p.lanes = lanes_for(lists.width);
  return p;
}

CombineParams combine_params(const CombineLists& lists, std::span<RaggedRow> out,
                             std::span<std::int32_t> lengths) {
  CombineParams p;
  p.positions = words(lists.positions);
  p.entries = lists.all_entries ? nullptr : words(lists.entries);
  p.entry_base = lists.entry_base.data();
  p.window_base = lists.window_base.data();
  p.window_start = lists.window_start.data();
  p.out = words(out.data());
  p.lengths = lengths.data();
  p.rows = std::ssize(lists.positions);
  // A list without columns has no entries, whatever its pointer.
  p.entry_width = lists.entry_width;
  p.width = combined_width(lists.entry_width, lists.window, lists.multiple);
  p.compact_rows = lists.compact_rows;
  p.window = lists.window;
  p.ratio = lists.ratio;
  return p;
}

WorkParams work_params(const KeyRanges& ranges, const WorkOptions& options,
                       const WorkBuffers& buffers, std::span<std::int64_t> workspace) {
  WorkParams p;
  p.counts = ranges.counts.data();
  p.firsts = or_null(ranges.firsts);
  p.rows = std::ssize(ranges.counts);
  p.workers = options.workers;
  p.per_worker = 1.0 / options.workers;
  p.fixed = options.fixed_split > 0;
  p.key_block = FastDiv(p.fixed ? options.fixed_split : options.block);
  p.items = reinterpret_cast<std::int32_t*>(buffers.items.data());
  p.room = std::ssize(buffers.items);
  p.row_items = buffers.row_items.data();
  p.worker_items = buffers.worker_items.data();
  p.tile_sums = workspace.data();
  return p;
}

PrefixParams q_indptr_params(const StepRowsInput& in, const StepRowsOutput& out,
                             std::span<std::int64_t> workspace) {
  PrefixParams p = prefix_params(in.rows, 1, workspace);
  p.out32 = out.q_indptr.data();
  return p;
}

StepRowsParams step_rows_params(const StepRowsInput& in, const StepRowsOutput& out) {
  StepRowsParams p;
  p.batch = batch_params(in);
  p.rows = std::ssize(out.positions);
  p.top_k = in.top_k;
  p.q_indptr = out.q_indptr.data();
  p.kv_lens = out.kv_lens.data();
  p.counts = out.counts == nullptr ? nullptr : &out.counts->rows;
  p.positions = words(out.positions.data());
  p.row_request = out.row_request.data();
  p.row_lens = out.row_lens.data();
  p.out_slots = words(out.out_slots.data());
  p.attend_lens = out.attend_lens.data();
  p.index_lens = or_null(out.index_lens);
  p.identity = or_null(out.identity);
  p.window_lens = or_null(out.window_lens);
  p.compressed_lens = or_null(out.compressed_lens);
  p.compressed_out_slots = words(out.compressed_out_slots.data());
  p.window_slots = words(out.window_slots.data);
  p.window_width = out.window_slots.width;
  p.table = table_params(out.page_table, in.lists.requests());
  p.compressed_table = table_params(out.compressed_table, in.lists.requests());
  // Requests + 1, because of the last entry of q_indptr.
  p.row_blocks = some_blocks(std::max(p.rows, in.lists.requests() + 1), kBlockRows);
  // One wave, because each block first sums up all requests.
  if (p.window_width > 0) p.window_blocks = some_blocks(p.rows, kScanThreads / 32, 132);
  return p;
}

}  // namespace lathe::cuda
