#include "kernels/cuda/sm90/step/step.h"

#include <fmt/format.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/step/step_argument.h"
#include "kernels/cuda/sm90/step/step_kernels.h"
#include "kernels/cuda/sm90/step/step_launch.h"

namespace lathe::cuda {
namespace {

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
  RaggedListParams p = ragged_list_params(lists, pool, ranges);
  p.indptr = out.indptr.data();
  p.items = out.items.empty() ? nullptr : &out.items.data()->value;
  p.room = std::ssize(out.items);
  p.of_pages = std::is_same_v<Index, PageId>;
  return launch_result(launch_ragged(p, stream), launch);
}

}  // namespace

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
  if (auto ok = check_local_counts(lists, rows, std::ssize(out)); !ok) return ok;
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
  if (auto ok = check_local_counts(lists, rows, std::ssize(out)); !ok) return ok;
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
  if (auto ok = check_combine_counts(c, out, lengths); !ok) return ok;
  if (rows == 0) return {};
  return launch_result(launch_combine(combine_params(c, out, lengths), stream),
                       {"combine_index_lists",
                        fmt::format("{} rows of {} + {}", rows, c.entry_width, c.window), where});
}

}  // namespace lathe::cuda
