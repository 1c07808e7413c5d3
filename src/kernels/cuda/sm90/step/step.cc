#include "kernels/cuda/sm90/step/step.h"

#include <fmt/format.h>

#include <limits>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/step/step_kernels.h"
#include "kernels/cuda/sm90/step/step_launch.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

Error bad(std::string field, std::string wanted, std::int64_t offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted),
          fmt::format("{}", offered), ""};
}

template <class T>
Result<void> check_count(const char* field, std::span<T> list, std::int64_t wanted) {
  if (std::ssize(list) == wanted) return {};
  return bad(field, fmt::format("{} entries", wanted), std::ssize(list));
}
template <class T>
Result<void> check_optional(const char* field, std::span<T> list, std::int64_t wanted) {
  if (list.empty()) return {};
  return check_count(field, list, wanted);
}
template <class T>
Result<void> check_room(const char* field, std::span<T> list, std::int64_t needed) {
  if (std::ssize(list) >= needed) return {};
  return Error{ErrorCode::exhausted, field, fmt::format("room for {}", needed),
               fmt::format("{}", list.size()), ""};
}
Result<void> check_range(const char* field, std::int64_t value, std::int64_t least) {
  if (value >= least && value <= kMaxInt32) return {};
  return bad(field, fmt::format("{} to {}", least, kMaxInt32), value);
}

Result<void> check_lists(const DevicePageLists& lists, PoolShape pool) {
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  if (lists.indptr.empty()) return bad("indptr", "requests + 1 entries", 0);
  return check_range("requests", lists.requests(), 0);
}

Result<void> check_ranges(const DevicePageLists& lists, TokenRanges ranges) {
  if (auto ok = check_count("lengths", ranges.lengths, lists.requests()); !ok) return ok;
  return check_optional("starts", ranges.starts, lists.requests());
}

template <class Index>
Result<void> check_table(const DeviceTable<Index>& out, std::int64_t requests) {
  if (auto ok = check_range("out.requests", out.requests, requests); !ok) return ok;
  return check_range("out.width", out.width, 0);
}

template <class Index>
Result<void> ragged(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                    const DeviceRagged<Index>& out, std::int64_t tokens_per_item,
                    std::span<std::int64_t> workspace, const char* kernel, cudaStream_t stream,
                    const std::source_location& where) {
  if (auto ok = check_lists(lists, pool); !ok) return ok;
  if (auto ok = check_ranges(lists, ranges); !ok) return ok;
  const std::int64_t requests = lists.requests();
  if (auto ok = check_count("out.indptr", out.indptr, requests + 1); !ok) return ok;
  if (auto ok = check_room("workspace", workspace, scan_workspace(requests)); !ok) return ok;
  const Launch launch{
      kernel, fmt::format("{} requests, room for {} items", requests, out.items.size()), where};
  PrefixParams prefix = prefix_params(ranges.lengths, tokens_per_item, workspace);
  prefix.out = out.indptr.data();
  if (auto ok = launch_result(launch_prefix(prefix, stream), launch); !ok) return ok;
  RaggedParams p = ragged_params(lists, pool, ranges);
  p.indptr = out.indptr.data();
  p.items = out.items.empty() ? nullptr : &out.items.data()->value;
  p.room = std::ssize(out.items);
  p.of_pages = std::is_same_v<Index, PageId>;
  return launch_result(launch_ragged(p, stream), launch);
}

Result<void> check_local(const LocalLists& lists, std::int64_t rows) {
  if (auto ok = check_range("width", lists.width, 0); !ok) return ok;
  if (auto ok = check_range("rows", rows, 0); !ok) return ok;
  if (auto ok = check_count("positions", lists.positions, rows * lists.width); !ok) return ok;
  return check_optional("lens", lists.lens, rows);
}

}  // namespace

std::int64_t scan_workspace(std::int64_t count) { return scan_tiles(count); }
std::int64_t work_workspace(std::int64_t rows) { return rows + 1 + 2 * scan_tiles(rows); }

Result<void> page_table(const DevicePageLists& lists, PoolShape pool,
                        std::span<const std::int32_t> lens, DeviceTable<PageId> out,
                        cudaStream_t stream, std::source_location where) {
  if (auto ok = check_lists(lists, pool); !ok) return ok;
  if (auto ok = check_optional("lens", lens, lists.requests()); !ok) return ok;
  if (auto ok = check_table(out, lists.requests()); !ok) return ok;
  return launch_result(
      launch_page_table(page_table_params(lists, pool, lens, out), stream),
      {"page_table", fmt::format("{} requests x {} pages", out.requests, out.width), where});
}

Result<void> ragged_slots(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceRagged<Slot> out, std::span<std::int64_t> workspace,
                          cudaStream_t stream, std::source_location where) {
  return ragged(lists, pool, ranges, out, 1, workspace, "ragged_slots", stream, where);
}

Result<void> ragged_pages(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                          DeviceRagged<PageId> out, std::span<std::int64_t> workspace,
                          cudaStream_t stream, std::source_location where) {
  return ragged(lists, pool, ranges, out, pool.page_size, workspace, "ragged_pages", stream, where);
}

Result<void> slot_table(const DevicePageLists& lists, PoolShape pool, TokenRanges ranges,
                        DeviceTable<Slot> out, cudaStream_t stream, std::source_location where) {
  if (auto ok = check_lists(lists, pool); !ok) return ok;
  if (auto ok = check_ranges(lists, ranges); !ok) return ok;
  if (auto ok = check_table(out, lists.requests()); !ok) return ok;
  return launch_result(
      launch_slot_table(slot_table_params(lists, pool, ranges, out), stream),
      {"slot_table", fmt::format("{} requests x {} slots", out.requests, out.width), where});
}

Result<void> local_to_slots(const LocalLists& lists, std::span<const std::int32_t> row_request,
                            PageTableView table, PoolShape pool, std::span<Slot> out,
                            cudaStream_t stream, std::source_location where) {
  const std::int64_t rows = std::ssize(row_request);
  if (auto ok = check_pool_shape(pool); !ok) return ok;
  if (auto ok = check_local(lists, rows); !ok) return ok;
  if (auto ok = check_count("out", out, rows * lists.width); !ok) return ok;
  if (out.empty()) return {};
  TransformParams p = transform_params(lists, row_request, &out.data()->value);
  p.to_slots = true;
  p.requests = table.requests;
  p.table = table.data == nullptr ? nullptr : &table.data->value;
  p.table_width = table.width;
  p.limit = pool.pages;
  p.page_size = FastDiv(pool.page_size);
  return launch_result(launch_transform(p, stream),
                       {"local_to_slots", fmt::format("{} rows of {}", rows, lists.width), where});
}

Result<void> local_to_ragged(const LocalLists& lists, std::span<const std::int32_t> row_offset,
                             std::int64_t compact_rows, std::span<RaggedRow> out,
                             cudaStream_t stream, std::source_location where) {
  const std::int64_t rows = std::ssize(row_offset);
  if (auto ok = check_local(lists, rows); !ok) return ok;
  if (auto ok = check_count("out", out, rows * lists.width); !ok) return ok;
  if (auto ok = check_range("compact_rows", compact_rows, 0); !ok) return ok;
  if (out.empty()) return {};
  TransformParams p = transform_params(lists, row_offset, &out.data()->value);
  p.limit = compact_rows;
  return launch_result(launch_transform(p, stream),
                       {"local_to_ragged", fmt::format("{} rows of {}", rows, lists.width), where});
}

Result<void> combine_index_lists(const CombineLists& c, std::span<RaggedRow> out,
                                 std::span<std::int32_t> lengths, cudaStream_t stream,
                                 std::source_location where) {
  const std::int64_t rows = std::ssize(c.positions);
  if (auto ok = check_range("ratio", c.ratio, 1); !ok) return ok;
  if (auto ok = check_range("window", c.window, 0); !ok) return ok;
  if (auto ok = check_range("multiple", c.multiple, 1); !ok) return ok;
  if (auto ok = check_range("entry_width", c.entry_width, 0); !ok) return ok;
  if (auto ok = check_range("compact_rows", c.compact_rows, 0); !ok) return ok;
  const std::int64_t listed = c.all_entries ? 0 : rows * c.entry_width;
  if (auto ok = check_count("entries", c.entries, listed); !ok) return ok;
  if (auto ok = check_count("entry_base", c.entry_base, rows); !ok) return ok;
  if (auto ok = check_count("window_base", c.window_base, rows); !ok) return ok;
  if (auto ok = check_count("window_start", c.window_start, rows); !ok) return ok;
  if (auto ok = check_count("lengths", lengths, rows); !ok) return ok;
  const std::int64_t width = combined_width(c.entry_width, c.window, c.multiple);
  if (auto ok = check_count("out", out, rows * width); !ok) return ok;
  if (rows == 0) return {};
  return launch_result(launch_combine(combine_params(c, out, lengths), stream),
                       {"combine_index_lists",
                        fmt::format("{} rows of {} + {}", rows, c.entry_width, c.window), where});
}

Result<void> plan_work(const KeyRanges& ranges, const WorkOptions& options,
                       const WorkBuffers& buffers, std::span<std::int64_t> workspace,
                       cudaStream_t stream, std::source_location where) {
  const std::int64_t rows = std::ssize(ranges.counts);
  if (auto ok = check_range("workers", options.workers, 1); !ok) return ok;
  if (auto ok = check_range("block", options.block, 1); !ok) return ok;
  if (auto ok = check_range("fixed_split", options.fixed_split, 0); !ok) return ok;
  if (auto ok = check_range("rows", rows, 0); !ok) return ok;
  if (auto ok = check_optional("firsts", ranges.firsts, rows); !ok) return ok;
  if (auto ok = check_room("row_items", buffers.row_items, rows + 1); !ok) return ok;
  if (auto ok = check_room("worker_items", buffers.worker_items, options.workers + 1LL); !ok) {
    return ok;
  }
  if (auto ok = check_room("workspace", workspace, work_workspace(rows)); !ok) return ok;
  return launch_result(
      launch_work(work_params(ranges, options, buffers, workspace), stream),
      {"plan_work", fmt::format("{} rows, {} workers", rows, options.workers), where});
}

Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                       std::span<std::int64_t> workspace, cudaStream_t stream,
                       std::source_location where) {
  if (auto ok = check_lists(in.lists, in.pool); !ok) return ok;
  const std::int64_t requests = in.lists.requests();
  const std::int64_t rows = std::ssize(out.positions);
  if (auto ok = check_count("cached", in.cached, requests); !ok) return ok;
  if (auto ok = check_count("rows", in.rows, requests); !ok) return ok;
  if (auto ok = check_optional("padding", in.padding, requests); !ok) return ok;
  if (auto ok = check_range("top_k", in.top_k, 0); !ok) return ok;
  if (auto ok = check_count("q_indptr", out.q_indptr, requests + 1); !ok) return ok;
  if (auto ok = check_count("kv_lens", out.kv_lens, requests); !ok) return ok;
  if (auto ok = check_count("row_request", out.row_request, rows); !ok) return ok;
  if (auto ok = check_count("row_lens", out.row_lens, rows); !ok) return ok;
  if (auto ok = check_count("out_slots", out.out_slots, rows); !ok) return ok;
  if (auto ok = check_count("attend_lens", out.attend_lens, rows); !ok) return ok;
  if (auto ok = check_optional("identity", out.identity, rows); !ok) return ok;
  if (auto ok = check_range("page_table.requests", out.page_table.requests, requests); !ok) {
    return ok;
  }
  if (auto ok = check_range("page_table.width", out.page_table.width, 0); !ok) return ok;
  if (auto ok = check_room("workspace", workspace, scan_workspace(requests)); !ok) return ok;
  const Launch launch{"step_rows", fmt::format("{} requests, {} rows", requests, rows), where};
  PrefixParams prefix = prefix_params(in.rows, 1, workspace);
  prefix.out32 = out.q_indptr.data();
  if (auto ok = launch_result(launch_prefix(prefix, stream), launch); !ok) return ok;
  return launch_result(launch_step_rows(step_rows_params(in, out), stream), launch);
}

}  // namespace lathe::cuda
