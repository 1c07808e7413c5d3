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
template <class T>
const T* or_null(std::span<const T> list) {
  return list.empty() ? nullptr : list.data();
}

ListsParams lists_params(const DevicePageLists& lists, PoolShape pool) {
  return {lists.indptr.data(), words(lists.pages), lists.requests(), pool.pages,
          FastDiv(pool.page_size)};
}

RowLanes lanes_for(std::int64_t width) {
  const auto most = static_cast<std::uint64_t>(std::clamp<std::int64_t>(width, 1, kStepThreads));
  return {std::countr_zero(std::bit_ceil(most))};
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
  p.sums = workspace.data();
  return p;
}

RaggedParams ragged_params(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges) {
  RaggedParams p;
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
  // A list of no columns has no entries, whatever its pointer is.
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
  p.fixed = options.fixed_split > 0;
  p.unit = p.fixed ? options.fixed_split : options.block;
  p.items = reinterpret_cast<std::int32_t*>(buffers.items.data());
  p.room = std::ssize(buffers.items);
  p.row_items = buffers.row_items.data();
  p.worker_items = buffers.worker_items.data();
  p.row_units = workspace.data();
  p.sums = workspace.data() + p.rows + 1;
  return p;
}

StepRowsParams step_rows_params(const StepRowsInput& in, const StepRowsOutput& out) {
  StepRowsParams p;
  p.lists = lists_params(in.lists, in.pool);
  p.q_indptr = out.q_indptr.data();
  p.cached = in.cached.data();
  p.padding = or_null(in.padding);
  p.rows = std::ssize(out.positions);
  p.top_k = in.top_k;
  p.positions = words(out.positions.data());
  p.row_request = out.row_request.data();
  p.row_lens = out.row_lens.data();
  p.out_slots = words(out.out_slots.data());
  p.attend_lens = out.attend_lens.data();
  p.identity = out.identity.empty() ? nullptr : out.identity.data();
  p.kv_lens = out.kv_lens.data();
  p.table = words(out.page_table.data);
  p.width = out.page_table.width;
  const std::int64_t most = std::max(p.rows, p.lists.requests);
  p.row_blocks = static_cast<std::int32_t>(
      std::min<std::int64_t>((most + kStepThreads - 1) / kStepThreads, 132 * 8));
  p.lanes = lanes_for(p.width);
  return p;
}

}  // namespace lathe::cuda
