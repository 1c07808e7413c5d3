#include "kernels/cpu/moe.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/for_rows.h"
#include "kernels/cpu/rowwise.h"

namespace lathe {

ExpertOrder sort_by_expert(Arena& arena, std::span<const std::int32_t> ids, std::int64_t tokens,
                           std::int64_t top_k, std::int64_t experts) {
  const std::int64_t pairs = tokens * top_k;
  auto* begin = arena.take_array<std::int64_t>(experts + 1);
  auto* next = arena.take_array<std::int64_t>(experts);
  auto* pair = arena.take_array<std::int64_t>(pairs);
  auto* place = arena.take_array<std::int64_t>(pairs);
  auto* seen = arena.take_array<std::int64_t>(tokens);  // places of a token so far
  std::fill_n(begin, experts + 1, 0);
  for (const std::int32_t id : ids) ++begin[id + 1];
  for (std::int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
  std::copy_n(begin, experts, next);
  for (std::int64_t i = 0; i < pairs; ++i) pair[next[ids[static_cast<std::size_t>(i)]]++] = i;
  std::fill_n(seen, tokens, 0);
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t token = pair[i] / top_k;
    place[token * top_k + seen[token]++] = i;
  }
  return {pairs, top_k, begin, pair, place};
}

void cpu_gather_rows(const Execution& execution, const RowsView& x, const ExpertOrder& order,
                     std::int64_t first, const MutableRowsView& out) {
  for_rows(execution, out.rows, out.cols, [&](std::int64_t i) {
    const std::int64_t token = order.pair[first + i] / order.top_k;
    std::memcpy(out.row(i), x.row(token), static_cast<std::size_t>(4 * x.cols));
  });
}

void cpu_scatter_rows(const Execution& execution, const RowsView& y, std::span<const float> weights,
                      const ExpertOrder& order, std::int64_t first, const MutableRowsView& out) {
  for_rows(execution, out.rows, order.top_k * out.cols, [&](std::int64_t token) {
    for (std::int64_t j = 0; j < order.top_k; ++j) {
      const std::int64_t place = order.place[token * order.top_k + j] - first;
      if (place < 0 || place >= y.rows) continue;
      const std::int64_t pair = order.pair[first + place];
      cpu_add_scaled(reinterpret_cast<const float*>(y.row(place)),
                     weights[static_cast<std::size_t>(pair)], y.cols,
                     reinterpret_cast<float*>(out.row(token)));
    }
  });
}

}  // namespace lathe
