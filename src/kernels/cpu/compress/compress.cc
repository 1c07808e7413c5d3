// One task for every entry that a step completes and every state that it leaves. A task starts from
// the state before the step, or from an empty one, and folds its group's tokens in order. So a long
// prompt's entries are computed in parallel, with the same bits.
#include "kernels/cpu/compress/compress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>

#include "kernels/cpu/common/tasks.h"
#include "layout/codec/codec.h"
#include "layout/hadamard.h"

namespace lathe {
namespace {

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }

// [3, dim]: m, s and a of kernels/compress.h.
struct Fold {
  float* m;
  float* s;
  float* a;

  Fold(float* at, std::int64_t dim) : m(at), s(at + dim), a(at + 2 * dim) {}

  // One of the two exponentials is always e^0 = 1.
  void add(const float* kv, const float* gate, const float* bias, std::int64_t dim) const {
    for (std::int64_t i = 0; i < dim; ++i) {
      const float z = gate[i] + bias[i];
      const bool higher = z > m[i];
      const float fade = std::exp(higher ? m[i] - z : z - m[i]);
      s[i] = higher ? s[i] * fade + 1 : s[i] + fade;
      a[i] = higher ? a[i] * fade + kv[i] : a[i] + kv[i] * fade;
      m[i] = higher ? z : m[i];
    }
  }
};

// A request's rows in the step.
struct Rows {
  std::int64_t first_row = 0;
  std::int64_t cached = 0;  // position of the first row
  std::int64_t end = 0;     // position after the last row
  PageId before;
};

class Compressor {
 public:
  Compressor(const Compress& op, const PoolView& pool) : op_(op), pool_(pool) {}

  Rows rows_of(std::int64_t r) const {
    const auto at = static_cast<std::size_t>(r);
    const StepView& step = *op_.step;
    const std::int64_t first = step.q_indptr[at], n = step.q_indptr[at + 1] - first;
    const std::int64_t end = step.kv_lens[at];
    if (end == 0) return {};  // padding
    return {first, end - n, end, step.state_before[at]};
  }
  std::int64_t entries(const Rows& r) const { return r.end / op_.ratio - r.cached / op_.ratio; }

  // Folds group g over the request's tokens before `end`, into [3, dim].
  void fold(const Rows& r, std::int64_t g, std::int64_t end, float* to) const {
    const std::int64_t dim = op_.dim, own = r.cached / op_.ratio;
    const bool from_state = !r.before.is_hole() && (g == own || (op_.halves == 2 && g == own + 1));
    if (from_state) {
      const float* state = floats(op_.state.at(r.before, r.cached - 1));
      std::copy_n(state + (g - own) * 3 * dim, 3 * dim, to);
    } else {
      std::fill_n(to, dim, -std::numeric_limits<float>::infinity());
      std::fill_n(to + dim, 2 * dim, 0.0f);
    }
    const Fold fold(to, dim);
    const auto add = [&](std::int64_t first, std::int64_t last, std::int64_t channel) {
      for (std::int64_t p = std::max(first, r.cached); p < std::min(last, end); ++p) {
        const std::int64_t row = r.first_row + p - r.cached;
        const float* bias = op_.position_bias.data() + p % op_.ratio * op_.halves * dim + channel;
        fold.add(floats(op_.kv.row(row)) + channel, floats(op_.gate.row(row)) + channel, bias, dim);
      }
    };
    if (op_.halves == 2) add((g - 1) * op_.ratio, g * op_.ratio, 0);
    add(g * op_.ratio, (g + 1) * op_.ratio, (op_.halves - 1) * dim);
  }

  // Writes the entry of group g. memory: [3, dim] of scratch.
  Result<void> emit(const Rows& r, std::int64_t g, float* memory) const {
    const std::int64_t dim = op_.dim;
    fold(r, g, r.end, memory);
    const Fold made(memory, dim);
    float* entry = made.a;
    float squares = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      entry[i] /= made.s[i];
      squares += entry[i] * entry[i];
    }
    const float factor = 1 / std::sqrt(squares / static_cast<float>(dim) + op_.norm_eps);
    for (std::int64_t i = 0; !op_.norm.empty() && i < dim; ++i) {
      entry[i] *= factor * op_.norm[static_cast<std::size_t>(i)];
    }
    const auto first = LocalPos(static_cast<std::int32_t>(g * op_.ratio));
    rotate_row(*op_.table, first, RopeDirection::forward, entry + dim - op_.table->dim());
    if (op_.hadamard) hadamard(entry, dim);
    const RowsView row{reinterpret_cast<const std::byte*>(entry), DType::f32, 1, dim, dim};
    const std::int64_t last = r.first_row + (g + 1) * op_.ratio - 1 - r.cached;
    return encode_rows(
        row, op_.step->compressed_out_slots.subspan(static_cast<std::size_t>(last), 1), pool_);
  }

  // Computes the state after the tokens before `end`, [halves, 3, dim].
  void state(const Rows& r, std::int64_t end, float* to) const {
    const std::int64_t g = end / op_.ratio;
    fold(r, g, end, to);
    if (op_.halves == 2) fold(r, g + 1, end, to + 3 * std::int64_t{op_.dim});
  }

  // Calls f(end, slot) for each state to store: it is the state after the tokens before `end`.
  template <class F>
  void for_states(std::int64_t request, const Rows& r, F f) const {
    for (std::int64_t p = r.cached; p < r.end; ++p) {
      if (!leaves_state(*op_.step, op_.state, p, r.end)) continue;
      const PageId slot = op_.step->state_table.at(request, p / op_.step->state_tokens);
      if (!slot.is_hole()) f(p + 1, slot);
    }
  }

 private:
  const Compress& op_;
  const PoolView& pool_;
};

// Computes the entry of a group, or a state if there is a slot.
struct Task {
  std::int64_t request = 0;
  std::int64_t group_or_end = 0;
  PageId slot;
};

}  // namespace

Result<void> cpu_compress(const Execution& execution, Arena& arena, const Compress& op,
                          const PoolView& pool) {
  const Compressor compressor(op, pool);
  const Arena::Scope scope(arena);
  const std::int64_t requests = op.step->requests;
  std::int64_t count = 0, states = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const Rows rows = compressor.rows_of(r);
    count += compressor.entries(rows);
    compressor.for_states(r, rows, [&](std::int64_t, PageId) { ++states; });
  }
  count += states;
  auto* tasks = arena.take_array<Task>(count);
  std::int64_t at = 0;
  for (std::int64_t r = 0; r < requests; ++r) {
    const Rows rows = compressor.rows_of(r);
    compressor.for_states(r, rows, [&](std::int64_t end, PageId slot) {
      tasks[at++] = {r, end, slot};
    });
  }
  for (std::int64_t r = 0; r < requests; ++r) {
    const Rows rows = compressor.rows_of(r);
    const std::int64_t first = rows.cached / op.ratio;
    for (std::int64_t g = 0; g < compressor.entries(rows); ++g) tasks[at++] = {r, first + g, {}};
  }
  // States are stored after all tasks have read the states before the step: they may share slots.
  const std::int64_t state_floats = fold_floats(op.halves, op.dim);
  auto* made = arena.take_array<float>(state_floats * states);
  auto* memory = arena.take_array<float>(3 * op.dim * thread_count(execution));
  std::mutex guard;
  std::optional<Error> failed;
  run_tasks(execution, count, [&](std::int64_t i, int worker) {
    const Task& task = tasks[i];
    const Rows rows = compressor.rows_of(task.request);
    if (i < states) {
      compressor.state(rows, task.group_or_end, made + i * state_floats);
      return;
    }
    const auto ok =
        compressor.emit(rows, task.group_or_end, memory + std::int64_t{worker} * 3 * op.dim);
    if (ok) return;
    const std::lock_guard lock(guard);
    if (!failed) failed = ok.error();
  });
  if (failed) return *failed;
  for (std::int64_t i = 0; i < states; ++i) {
    std::copy_n(made + i * state_floats, state_floats,
                reinterpret_cast<float*>(op.state.at(tasks[i].slot, tasks[i].group_or_end - 1)));
  }
  return {};
}

}  // namespace lathe
