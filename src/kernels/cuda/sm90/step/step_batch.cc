#include <fmt/format.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/step/step.h"
#include "kernels/cuda/sm90/step/step_argument.h"
#include "kernels/cuda/sm90/step/step_kernels.h"
#include "kernels/cuda/sm90/step/step_launch.h"

namespace lathe::cuda {
namespace {

Result<void> check_batch(const StepRowsInput& in) {
  if (auto ok = check_lists(in.lists, in.pool); !ok) return ok;
  const std::int64_t requests = in.lists.requests();
  if (auto ok = check_count("cached", in.cached, requests); !ok) return ok;
  if (auto ok = check_count("rows", in.rows, requests); !ok) return ok;
  if (auto ok = check_optional("padding", in.padding, requests); !ok) return ok;
  if (auto ok = check_range("top_k", in.top_k, 0); !ok) return ok;
  if (auto ok = check_range("window", in.window, 0); !ok) return ok;
  if (auto ok = check_range("ratio", in.ratio, 0); !ok) return ok;
  if (in.ratio == 0) return {};
  if (in.window == 0) return bad_number("ratio", "0 without a window", in.ratio);
  if (auto ok = check_lists(in.compressed_lists, in.compressed_pool); !ok) return ok;
  return check_count("compressed_lists.indptr", in.compressed_lists.indptr, requests + 1);
}

// Checks an optional table of `rows` rows.
template <class Index>
Result<void> check_width(const char* field, const DeviceTable<Index>& table, std::int64_t rows) {
  if (auto ok = check_range(field, table.width, 0); !ok) return ok;
  if (table.width == 0 || table.requests == rows) return {};
  return bad_number(field, fmt::format("{} rows", rows), table.requests);
}

Result<void> check_sources(const StepRowsInput& in, const StepRowsOutput& out) {
  const std::int64_t rows = std::ssize(out.positions);
  const std::int64_t windows = in.window > 0 ? rows : 0;
  const std::int64_t entries = in.ratio > 0 ? rows : 0;
  if (auto ok = check_count("window_lens", out.window_lens, windows); !ok) return ok;
  if (auto ok = check_width("window_slots", out.window_slots, rows); !ok) return ok;
  const std::int64_t width = out.window_slots.width;
  if (in.window == 0 && width > 0) {
    return bad_number("window_slots.width", "0 without a window", width);
  }
  if (width > 0) {
    if (auto ok = check_range("window_slots.width", width, in.window); !ok) return ok;
  }
  if (auto ok = check_count("compressed_lens", out.compressed_lens, entries); !ok) return ok;
  if (auto ok = check_count("compressed_out_slots", out.compressed_out_slots, entries); !ok) {
    return ok;
  }
  if (in.ratio == 0 && out.compressed_table.width > 0) {
    return bad_number("compressed_table.width", "0 with one source", out.compressed_table.width);
  }
  return check_width("compressed_table", out.compressed_table, in.lists.requests());
}

}  // namespace

std::int64_t scan_workspace(std::int64_t count) { return scan_tiles(count); }
std::int64_t work_workspace(std::int64_t rows) { return 2 * scan_tiles(rows); }

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
  // An item is stored with one 16-byte access.
  const auto* items = static_cast<const void*>(buffers.items.data());
  if (reinterpret_cast<std::uintptr_t>(items) % 16 != 0) {
    return Error{ErrorCode::invalid_argument, "items", "an address that is a multiple of 16",
                 fmt::format("{}", items), ""};
  }
  return launch_result(
      launch_work(work_params(ranges, options, buffers, workspace), stream),
      {"plan_work", fmt::format("{} rows, {} workers", rows, options.workers), where});
}

Result<void> step_rows(const StepRowsInput& in, const StepRowsOutput& out,
                       std::span<std::int64_t> workspace, cudaStream_t stream,
                       std::source_location where) {
  if (auto ok = check_batch(in); !ok) return ok;
  const std::int64_t requests = in.lists.requests();
  const std::int64_t rows = std::ssize(out.positions);
  if (auto ok = check_count("q_indptr", out.q_indptr, requests + 1); !ok) return ok;
  if (auto ok = check_count("kv_lens", out.kv_lens, requests); !ok) return ok;
  if (auto ok = check_range("rows", rows, 0); !ok) return ok;
  if (auto ok = check_count("row_request", out.row_request, rows); !ok) return ok;
  if (auto ok = check_count("row_lens", out.row_lens, rows); !ok) return ok;
  if (auto ok = check_count("out_slots", out.out_slots, rows); !ok) return ok;
  if (auto ok = check_count("attend_lens", out.attend_lens, rows); !ok) return ok;
  if (auto ok = check_optional("identity", out.identity, rows); !ok) return ok;
  if (auto ok = check_optional("index_lens", out.index_lens, rows); !ok) return ok;
  if (auto ok = check_width("page_table", out.page_table, requests); !ok) return ok;
  if (auto ok = check_sources(in, out); !ok) return ok;
  if (auto ok = check_room("workspace", workspace, scan_workspace(requests)); !ok) return ok;
  const Launch launch{"step_rows", fmt::format("{} requests, {} rows", requests, rows), where};
  if (scan_tiles(requests) > 1) {
    const auto tile_sums = q_indptr_params(in, out, workspace);
    if (auto ok = launch_result(launch_prefix(tile_sums, stream), launch); !ok) return ok;
  }
  return launch_result(launch_step_rows(step_rows_params(in, out), stream), launch);
}

}  // namespace lathe::cuda
