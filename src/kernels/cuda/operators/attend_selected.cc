#include "kernels/cuda/operators/attend_selected.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

Result<void> attend_selected(const AttendOp& op, AttendFn kernel, const Execution& execution,
                             Arena& tensors, cudaStream_t stream) {
  const std::int64_t rows = op.step->rows, width = op.slots_width;
  const std::int64_t cols = op.pool.layout.row_elems();
  const std::int64_t row_bytes = bytes_of(DType::bf16, cols * width);
  if (width == 0) {
    return Error{ErrorCode::unsupported, "adapter", "rows with lists of keys", "a page table", ""};
  }
  const std::int64_t most = std::min(rows, std::ssize(op.gather_workspace) / row_bytes);
  if (most == 0 && rows > 0) {
    return Error{ErrorCode::exhausted, "gather", fmt::format("room for {} bytes", row_bytes),
                 fmt::format("{}", op.gather_workspace.size()), "raise the gather budget"};
  }
  const Arena::Scope scope(tensors);
  auto* list = tensors.take_array<std::int32_t>(most * width);
  // The lists name the keys, so each row is a request of one row, and its length must only be
  // positive.
  auto* counted = tensors.take_array<std::int32_t>(most + 1);
  cudaError_t status = launch_count_up(counted, nullptr, most + 1, stream);
  const AttendArgs args = attend_args(op, execution);
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t n = std::min(most, rows - first);
    const auto keys = static_cast<std::size_t>(n * width);
    const std::int32_t* slots = op.slots.data() + first * width;
    if (status == cudaSuccess) status = launch_count_up(list, slots, n * width, stream);
    if (status != cudaSuccess) break;
    const MutableRowsView compact{op.gather_workspace.data(), DType::bf16, n * width, cols, cols};
    const std::span from(reinterpret_cast<const Slot*>(slots), keys);
    if (auto ok = gather_decode(op.pool, from, compact, op.scales, stream); !ok) return ok;
    AttendArgs a = args;
    a.q = rows_at(args.q, first, n);
    a.out = rows_at(args.out, first, n);
    a.schedule = nullptr;
    a.main = {};
    a.main.compact = constant(compact);
    a.main.indices = {list, keys};
    a.main.index_width = width;
    a.q_indptr = {counted, static_cast<std::size_t>(n + 1)};
    a.kv_lens = {counted + 1, static_cast<std::size_t>(n)};
    a.max_request_rows = 1;
    a.max_kv_len = width;
    if (auto ok = kernel(a); !ok) return ok;
  }
  return launch_result(status, {"count_up", fmt::format("{} rows of {} keys", rows, width),
                                std::source_location::current()});
}

}  // namespace lathe::cuda
