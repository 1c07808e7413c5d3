#include "kernels/ref/indexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "kernels/key_groups.h"
#include "kernels/ref/decode_token.h"
#include "layout/codec/codec.h"
#include "layout/hadamard.h"

namespace lathe {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Reads key j of row t times its scale, or all NaN if its page is missing.
void read_key(const IndexKeys& keys, const IndexRows& rows, std::int64_t t, std::int64_t j,
              std::span<double> key) {
  const auto row = static_cast<std::size_t>(t);
  std::ranges::fill(key, std::numeric_limits<double>::quiet_NaN());
  if (!keys.pool) {
    const std::size_t at = static_cast<std::size_t>(rows.first[row] + j);
    for (std::size_t d = 0; d < key.size(); ++d) {
      key[d] = double{to_f32(keys.codes[at * key.size() + d])} * keys.scales[at];
    }
    return;
  }
  const ConstPoolView& pool = *keys.pool;
  if (rows.request[row] < 0) return;
  const PageId page = keys.page_table.at(rows.request[row], j / pool.page_size);
  if (page.value < 0 || page.value >= pool.pages) return;
  const auto offset = static_cast<std::int32_t>(j % pool.page_size);
  decode_token(pool, slot_of(page, pool.page_size, offset), 1, 1, key);
}

}  // namespace

Result<void> ref_index_logits(const IndexQuery& query, const IndexKeys& keys, const IndexRows& rows,
                              std::int64_t cols, std::span<double> logits,
                              std::span<double> magnitudes) {
  if (auto ok = check_index_args(query, keys, rows); !ok) return ok;
  const std::int64_t count = std::ssize(rows.lens);
  const std::int64_t longest =
      count == 0 ? 0 : *std::max_element(rows.lens.begin(), rows.lens.end());
  if (cols < longest || std::ssize(logits) != count * cols ||
      (!magnitudes.empty() && magnitudes.size() != logits.size())) {
    return Error{ErrorCode::invalid_argument, "logits",
                 fmt::format("{} rows of at least {}", count, longest),
                 fmt::format("{} of {}", logits.size(), cols), ""};
  }
  const auto dim = static_cast<std::size_t>(query.dim);
  std::vector<double> key(dim);
  for (std::int64_t t = 0; t < count; ++t) {
    for (std::int64_t j = 0; j < cols; ++j) {
      double logit = 0;
      double magnitude = 0;
      if (j < rows.lens[static_cast<std::size_t>(t)]) {
        read_key(keys, rows, t, j, key);
        for (std::int64_t h = 0; h < query.heads; ++h) {
          const auto head = static_cast<std::size_t>(t * query.heads + h);
          double dot = 0;
          double size = 0;
          for (std::size_t d = 0; d < dim; ++d) {
            const double product = double{to_f32(query.codes[head * dim + d])} * key[d];
            dot += product;
            size += std::fabs(product);
          }
          // Not std::max: a NaN must stay NaN.
          logit += (dot < 0 ? 0 : dot) * query.weights[head];
          magnitude += size * std::fabs(double{query.weights[head]});
        }
      } else {
        logit = -kInfinite;
      }
      const auto at = static_cast<std::size_t>(t * cols + j);
      logits[at] = logit;
      if (!magnitudes.empty()) magnitudes[at] = magnitude;
    }
  }
  return {};
}

std::vector<std::int32_t> ref_top_k(std::span<const float> scores, std::int64_t k) {
  std::vector<std::int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::ssize(scores) <= k) return order;
  const auto score = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
  std::erase_if(order, [&](std::int32_t i) { return std::isnan(score(i)); });
  std::ranges::stable_sort(order,
                           [&](std::int32_t a, std::int32_t b) { return score(a) > score(b); });
  order.resize(static_cast<std::size_t>(std::min<std::int64_t>(k, std::ssize(order))));
  std::ranges::sort(order);
  return order;
}

namespace {

// Quantises each head as the index layout does, and folds the scale into the head's weight.
void quantize_row(const SelectKeys& op, std::int64_t t, std::span<e4m3> codes,
                  std::span<float> folded) {
  const CacheLayout layout(LayoutKind::index_fp8, {.dim = op.dim}, op.keys.layout.scale_policy());
  // Encodes the heads as the tokens of one page: all codes, then all scales.
  std::vector<std::byte> bytes(static_cast<std::size_t>(layout.page_stride(op.heads)));
  std::vector<Slot> slots;
  for (std::int32_t h = 0; h < op.heads; ++h) slots.emplace_back(h);
  const auto* q = reinterpret_cast<const float*>(op.q.row(t));
  std::vector<float> turned(q, q + std::int64_t{op.heads} * op.dim);
  for (std::int32_t h = 0; op.hadamard && h < op.heads; ++h) {
    hadamard(turned.data() + std::int64_t{h} * op.dim, op.dim);
  }
  const RowsView heads{reinterpret_cast<const std::byte*>(turned.data()), DType::f32, op.heads,
                       op.dim, op.dim};
  const auto done = encode_rows(heads, slots, PoolView(bytes.data(), layout, op.heads, 1));
  LATHE_CHECK(done.ok(), "the page fits the row");
  std::memcpy(codes.data(), bytes.data(), codes.size());
  const auto* weights = reinterpret_cast<const float*>(op.weights.row(t));
  const auto constant = static_cast<float>(
      1 / std::sqrt(static_cast<double>(op.heads) * static_cast<double>(op.dim)));
  for (std::size_t h = 0; h < folded.size(); ++h) {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + codes.size() + 4 * h, 4);
    folded[h] = weights[h] * constant * scale;
  }
}

// Copies the list that another row has chosen, or lists the row's first keys.
void take_choice(const SelectKeys& op, std::int64_t t) {
  const StepView& step = *op.step;
  const std::int32_t choice = op.choice_rows[static_cast<std::size_t>(t)];
  const IndexTarget target{.unit = IndexTargetUnit::slot,
                           .table = index_table(step),
                           .pool = op.main,
                           .request = step.row_request};
  for (std::int64_t i = 0; i < op.k; ++i) {
    std::int32_t slot = -1;
    if (choice >= 0 && i < op.choice_width) {
      slot = op.choices[static_cast<std::size_t>(choice * op.choice_width + i)];
    } else if (choice < 0 && i < step.index_lens[static_cast<std::size_t>(t)]) {
      slot = in_target(target, t, LocalPos(static_cast<std::int32_t>(i)));
    }
    op.slots[static_cast<std::size_t>(t * op.k + i)] = slot;
  }
}

}  // namespace

Result<void> ref_select_keys(const SelectKeys& op) {
  const StepView& step = *op.step;
  if (!op.choice_rows.empty()) {
    for (std::int64_t t = 0; t < step.rows; ++t) take_choice(op, t);
    return {};
  }
  const auto width = static_cast<std::size_t>(op.heads) * static_cast<std::size_t>(op.dim);
  const auto heads = static_cast<std::size_t>(op.heads);
  const auto rows = static_cast<std::size_t>(step.rows);
  std::vector<e4m3> codes(rows * width);
  std::vector<float> folded(rows * heads);
  for (std::size_t t = 0; step.selecting_rows > 0 && t < rows; ++t) {
    quantize_row(op, static_cast<std::int64_t>(t), std::span(codes).subspan(t * width, width),
                 std::span(folded).subspan(t * heads, heads));
  }
  IndexKeys keys;
  keys.pool = op.keys;
  keys.page_table = index_table(step);
  const IndexTarget target{.unit = IndexTargetUnit::slot,
                           .table = index_table(step),
                           .pool = op.main,
                           .request = step.row_request};
  const std::int64_t cols = step.index_lens.empty() ? 0 : std::ranges::max(step.index_lens);
  std::vector<double> logits(rows * static_cast<std::size_t>(cols));
  if (auto ok = ref_index_logits(
          {op.heads, op.dim, codes, folded}, keys,
          {.lens = step.index_lens, .request = step.row_request, .first = {}}, cols, logits, {});
      !ok) {
    return ok;
  }
  std::vector<std::int32_t> keys_of_groups;
  if (op.tokens_per_key > 1) keys_of_groups.resize(rows * static_cast<std::size_t>(op.k));
  const std::span all = op.tokens_per_key > 1 ? std::span(keys_of_groups) : op.slots;
  for (std::int64_t t = 0; t < step.rows; ++t) {
    const auto row = logits.begin() + t * cols;
    const std::vector<float> scores(row, row + step.index_lens[static_cast<std::size_t>(t)]);
    const auto out =
        all.subspan(static_cast<std::size_t>(t * op.k), static_cast<std::size_t>(op.k));
    std::ranges::fill(out, -1);
    std::size_t n = 0;
    for (const std::int32_t p : ref_top_k(scores, op.k)) {
      out[n++] = in_target(target, t, LocalPos(p));
    }
  }
  if (op.tokens_per_key > 1) list_tokens(op, all);
  return {};
}

}  // namespace lathe
