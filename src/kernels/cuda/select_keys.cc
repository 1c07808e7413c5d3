// Chooses a row's keys on the GPU: quantizes index queries, scores the keys, selects the best.
#include "kernels/cuda/select_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {
namespace {

IndexPages pages_of(const ConstPoolView& pool, std::int32_t dim) {
  return {pool.data, pool.pages, pool.page_stride, pool.page_size, dim};
}

}  // namespace

Result<void> select_keys(const SelectKeys& op, Arena& tensors, cudaStream_t stream) {
  const StepView& step = *op.step;
  const bool ranks = step.selecting_rows > 0;
  const std::int64_t cols = ranks ? step.max_context : 0;
  const std::int64_t row_bytes = std::max<std::int64_t>(1, cols * 4);
  const std::int64_t most =
      op.budget_bytes > 0 ? std::clamp<std::int64_t>(op.budget_bytes / row_bytes, 1, step.rows)
                          : step.rows;
  const Arena::Scope scope(tensors);
  auto* logits = tensors.take_array<float>(most * cols);
  // A page of as many tokens as heads, for every row.
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = op.dim}, op.keys.layout.scale_policy());
  const std::int64_t heads = ranks ? most * op.heads : 0;
  auto* slots = tensors.take_array<Slot>(heads);
  std::byte* codes = tensors.take(ranks ? most * layout.page_stride(op.heads) : 0);
  cudaError_t status =
      launch_count_up(reinterpret_cast<std::int32_t*>(slots), nullptr, heads, stream);
  for (std::int64_t first = 0; first < step.rows && status == cudaSuccess; first += most) {
    const std::int64_t rows = std::min(most, step.rows - first);
    SelectSlots select{.logits = logits,
                       .rows = rows,
                       .cols = cols,
                       .lens = step.index_lens.data() + first,
                       .page_table = reinterpret_cast<const std::int32_t*>(step.page_table.data),
                       .width = step.page_table.width,
                       .request = step.row_request.data() + first,
                       .page_tokens = op.main.page_size,
                       .pages = op.main.pages,
                       .slots = op.slots.data() + first * op.k,
                       .k = op.k};
    if (ranks) {
      const PoolView q(codes, layout, op.heads, rows);
      for (std::int64_t row = 0; op.q.row_stride != op.q.cols && row < rows; ++row) {
        const RowsView one{op.q.row(first + row), op.q.dtype, op.heads, op.dim, op.dim};
        const std::span list(slots + row * op.heads, static_cast<std::size_t>(op.heads));
        if (auto ok = encode_rows(one, list, q, {}, stream); !ok) return ok;
      }
      if (op.q.row_stride == op.q.cols) {
        const RowsView all{op.q.row(first), op.q.dtype, rows * op.heads, op.dim, op.dim};
        const std::span list(slots, static_cast<std::size_t>(rows * op.heads));
        if (auto ok = encode_rows(all, list, q, {}, stream); !ok) return ok;
      }
      const double scale =
          1 / std::sqrt(static_cast<double>(op.heads) * static_cast<double>(op.dim));
      status =
          launch_index_logits({.q = pages_of(q, op.dim),
                               .weights = reinterpret_cast<const float*>(op.weights.row(first)),
                               .weights_stride = op.weights.row_stride,
                               .constant = static_cast<float>(scale),
                               .keys = pages_of(op.keys, op.dim),
                               .page_table = select.page_table,
                               .width = select.width,
                               .request = select.request,
                               .lens = select.lens,
                               .logits = logits,
                               .rows = rows,
                               .cols = cols,
                               .heads = op.heads},
                              stream);
    }
    if (status == cudaSuccess) status = launch_select_slots(select, stream);
  }
  return launch_result(
      status,
      {"select_keys", fmt::format("{} rows, {} of {} keys", step.rows, op.k, step.max_context),
       std::source_location::current()});
}

}  // namespace lathe::cuda
