#include "kernels/cuda/operators/select_keys.h"

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

// The lists of `rows` rows from `first` on.
ListGroups tokens_of(const SelectKeys& op, const std::int32_t* groups, std::int64_t first,
                     std::int64_t rows) {
  const StepView& step = *op.step;
  const std::int64_t width = std::ssize(op.slots) / step.rows;
  return {.keys = groups,
          .k = op.k,
          .lens = step.row_lens.data() + first,
          .own = reinterpret_cast<const std::int32_t*>(step.out_slots.data()) + first,
          .group = op.tokens_per_key,
          .slots = op.slots.data() + first * width,
          .rows = rows,
          .width = width};
}

Result<void> take_choices(const SelectKeys& op, cudaStream_t stream) {
  const StepView& step = *op.step;
  const PageTableView& table = index_table(step);
  const SelectSlots select{.rows = step.rows,
                           .lens = step.index_lens.data(),
                           .page_table = reinterpret_cast<const std::int32_t*>(table.data),
                           .width = table.width,
                           .request = step.row_request.data(),
                           .page_tokens = op.main.page_size,
                           .pages = op.main.pages,
                           .slots = op.slots.data(),
                           .k = op.k};
  return launch_result(
      launch_take_choices({.select = select,
                           .choice_rows = op.choice_rows.data(),
                           .choices = op.choices.data(),
                           .choice_width = op.choice_width},
                          stream),
      {"select_keys", fmt::format("{} rows of {} keys that others chose", step.rows, op.k),
       std::source_location::current()});
}

// Quantizes the queries of the rows from `first` on to `out`, a page per row. slots: [rows *
// heads]; rotated: [rows, heads * dim] f32 if op.hadamard.
Result<void> quantize_q(const SelectKeys& op, std::int64_t first, const PoolView& out, Slot* slots,
                        float* rotated, cudaStream_t stream) {
  const std::int64_t rows = out.pages, heads = rows * op.heads;
  RowsView from = rows_at(op.q, first, rows);
  cudaError_t status =
      launch_count_up(reinterpret_cast<std::int32_t*>(slots), nullptr, heads, stream);
  if (status == cudaSuccess && op.hadamard) {
    status = launch_hadamard_rows({.x = reinterpret_cast<const float*>(from.data),
                                   .out = rotated,
                                   .x_stride = from.row_stride,
                                   .rows = rows,
                                   .heads = op.heads,
                                   .dim = op.dim},
                                  stream);
    from.data = reinterpret_cast<const std::byte*>(rotated);
    from.row_stride = from.cols;
  }
  if (status != cudaSuccess) {
    return launch_result(status, {"quantize_q", fmt::format("{} rows of {}", rows, from.cols),
                                  std::source_location::current()});
  }
  for (std::int64_t row = 0; from.row_stride != from.cols && row < rows; ++row) {
    const RowsView one{from.row(row), from.dtype, op.heads, op.dim, op.dim};
    const std::span list(slots + row * op.heads, static_cast<std::size_t>(op.heads));
    if (auto ok = encode_rows(one, list, out, {}, stream); !ok) return ok;
  }
  if (from.row_stride != from.cols) return {};
  const RowsView all{from.data, from.dtype, heads, op.dim, op.dim};
  const std::span list(slots, static_cast<std::size_t>(heads));
  return encode_rows(all, list, out, {}, stream);
}

}  // namespace

Result<void> select_keys(const SelectKeys& op, Arena& tensors, cudaStream_t stream) {
  const StepView& step = *op.step;
  if (!op.choice_rows.empty()) return take_choices(op, stream);
  const bool ranks = step.selecting_rows > 0;
  const std::int64_t cols = ranks ? op.most_keys : 0;
  if (op.hadamard && op.dim > kHadamardMostDim) {
    return Error{ErrorCode::unsupported, "index keys",
                 fmt::format("at most {} wide", kHadamardMostDim), fmt::format("{}", op.dim),
                 "--device cpu"};
  }
  const std::int64_t row_bytes = std::max<std::int64_t>(1, cols * 4);
  const std::int64_t most =
      op.budget_bytes > 0 ? std::clamp<std::int64_t>(op.budget_bytes / row_bytes, 1, step.rows)
                          : step.rows;
  const PageTableView& table = index_table(step);
  const Arena::Scope scope(tensors);
  auto* logits = tensors.take_array<float>(most * cols);
  // The quantized queries go to index pages, one page per row with a token per head.
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = op.dim}, op.keys.layout.scale_policy());
  const std::int64_t page_bytes = layout.page_stride(op.heads);
  const bool quantizes = ranks && op.codes.pages == nullptr;
  const std::int64_t heads = quantizes ? most * op.heads : 0;
  auto* slots = tensors.take_array<Slot>(heads);
  const bool grouped = op.tokens_per_key > 1;
  auto* groups = tensors.take_array<std::int32_t>(grouped ? most * op.k : 0);
  auto* rotated = tensors.take_array<float>(op.hadamard ? heads * op.dim : 0);
  std::byte* codes = tensors.take(quantizes ? most * page_bytes : 0);
  cudaError_t status = cudaSuccess;
  for (std::int64_t first = 0; first < step.rows && status == cudaSuccess; first += most) {
    const std::int64_t rows = std::min(most, step.rows - first);
    SelectSlots select{.logits = logits,
                       .rows = rows,
                       .cols = cols,
                       .lens = step.index_lens.data() + first,
                       .page_table = reinterpret_cast<const std::int32_t*>(table.data),
                       .width = table.width,
                       .request = step.row_request.data() + first,
                       .page_tokens = op.main.page_size,
                       .pages = op.main.pages,
                       .slots = grouped ? groups : op.slots.data() + first * op.k,
                       .k = op.k};
    if (ranks) {
      if (quantizes) {
        const PoolView out(codes, layout, op.heads, rows);
        if (auto ok = quantize_q(op, first, out, slots, rotated, stream); !ok) return ok;
      }
      const ConstPoolView q(quantizes ? codes : op.codes.pages + first * page_bytes, layout,
                            op.heads, rows);
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
    if (status == cudaSuccess && grouped) {
      status = launch_list_groups(tokens_of(op, groups, first, rows), stream);
    }
  }
  return launch_result(
      status, {"select_keys", fmt::format("{} rows, {} of {} keys", step.rows, op.k, op.most_keys),
               std::source_location::current()});
}

Result<std::span<const std::int32_t>> list_entries(const StepView& step,
                                                   const ConstPoolView& entries, std::int64_t width,
                                                   Arena& tensors, cudaStream_t stream) {
  const std::span slots(tensors.take_array<std::int32_t>(step.rows * width),
                        static_cast<std::size_t>(step.rows * width));
  // k is the most entries of a row: all are selected and no score is compared.
  const cudaError_t status = launch_select_slots(
      {.rows = step.rows,
       .lens = step.compressed_lens.data(),
       .page_table = reinterpret_cast<const std::int32_t*>(step.compressed_table.data),
       .width = step.compressed_table.width,
       .request = step.row_request.data(),
       .page_tokens = entries.page_size,
       .pages = entries.pages,
       .slots = slots.data(),
       .k = width},
      stream);
  if (status == cudaSuccess) return std::span<const std::int32_t>(slots);
  return launch_result(status, {"list_entries", fmt::format("{} rows of {}", step.rows, width),
                                std::source_location::current()})
      .error();
}

}  // namespace lathe::cuda
