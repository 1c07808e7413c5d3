// One task for every request and value head: it runs the request's rows in chunks. In a step of
// single rows a task has several heads of a request, which overlap (cpu_delta_heads()). The
// convolution of a key head's q and k is computed again for each of its value heads, which costs
// less than another pass over memory. The last inputs of the convolution are written when all tasks
// have read the ones before the step, because both may be in the same slot.
#include "kernels/cpu/delta/delta_rule.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/delta/delta_chunk.h"

namespace lathe {
namespace {

const float* floats(const std::byte* row) { return reinterpret_cast<const float*>(row); }
float* floats(std::byte* row) { return reinterpret_cast<float*>(row); }

DeltaRows<const float> columns(const RowsView& rows, std::int64_t first_row, std::int64_t column) {
  return {floats(rows.row(first_row)) + column, rows.row_stride};
}

// A request's rows in the step.
struct Rows {
  std::int64_t first = 0, count = 0;
  std::int64_t cached = 0;        // position of the first row
  const float* before = nullptr;  // the state before the step; null: none yet
};

class DeltaStep {
 public:
  DeltaStep(const DeltaRule& op, const float* zeros)
      : op_(op), p_(op.problem), size_(std::int64_t{p_.dk} * p_.dv), zeros_(zeros) {}

  Rows rows_of(std::int64_t r) const {
    const StepView& step = *op_.step;
    const auto at = static_cast<std::size_t>(r);
    const std::int64_t end = step.kv_lens[at];
    if (end == 0) return {};  // padding
    Rows out{step.q_indptr[at], step.q_indptr[at + 1] - step.q_indptr[at], 0, nullptr};
    out.cached = end - out.count;
    const PageId before = step.state_before[at];
    if (!before.is_hole()) out.before = floats(op_.state.at(before, out.cached - 1));
    return out;
  }

  // Where the row at `position` leaves the request's state; null: nowhere.
  float* left(std::int64_t r, const Rows& rows, std::int64_t position) const {
    const StepView& step = *op_.step;
    if (!leaves_state(step, op_.state, position, rows.cached + rows.count)) return nullptr;
    const PageId slot = step.state_table.at(r, position / step.state_tokens);
    return slot.is_hole() ? nullptr : floats(op_.state.at(slot, position));
  }

  // The row of x that is `back` rows before the request's first one.
  const float* earlier(const Rows& rows, std::int64_t back) const {
    if (rows.before == nullptr) return zeros_;
    return rows.before + delta_matrix_floats(p_) + (p_.conv - 1 - back) * p_.channels();
  }
  const float* input(const Rows& rows, std::int64_t t) const {
    return t < 0 ? earlier(rows, -t) : floats(op_.x.row(rows.first + t));
  }

  // A head's outputs and states. memory: of task_floats().
  void head(std::int64_t r, std::int64_t h, std::int64_t most_rows, float* memory) const {
    const Rows rows = rows_of(r);
    float* const local = memory;
    const float* x[kDeltaCpuRows + 8];
    float* after[kDeltaCpuRows];
    const float* in = before(rows, h);
    for (std::int64_t t = 0; t < rows.count; t += most_rows) {
      const std::int64_t n = std::min(most_rows, rows.count - t);
      for (std::int64_t i = 0; i < n + p_.conv - 1; ++i) x[i] = input(rows, t + i - p_.conv + 1);
      for (std::int64_t i = 0; i < n; ++i) {
        float* const state = left(r, rows, rows.cached + t + i);
        after[i] = state == nullptr ? local : state + h * size_;
      }
      DeltaChunk c = chunk(h, rows.first + t);
      c.rows = n;
      c.x = x;
      c.before = in;
      c.after = after;
      c.ends = t + n == rows.count;
      c.memory = memory + size_;
      cpu_delta_chunk(c);
      in = after[n - 1];
    }
  }

  // The same for `count` heads of a request with one row. memory: of two tasks.
  void heads(std::int64_t r, std::int64_t first, std::int64_t count, std::int64_t task_floats,
             float* memory) const {
    const Rows rows = rows_of(r);
    if (rows.count == 0) return;
    const float* x[8];
    for (std::int64_t i = 0; i < p_.conv; ++i) x[i] = input(rows, i - p_.conv + 1);
    float* const state = left(r, rows, rows.cached);
    float* after[kMostHeads];
    DeltaChunk chunks[kMostHeads];
    for (std::int64_t i = 0; i < count; ++i) {
      float* const own = memory + i % 2 * task_floats;
      after[i] = state == nullptr ? own : state + (first + i) * size_;
      DeltaChunk& c = chunks[i] = chunk(first + i, rows.first);
      c.rows = 1;
      c.x = x;
      c.before = before(rows, first + i);
      c.after = after + i;
      c.ends = true;
      c.ahead = c.before;
      if (leaves_inputs(rows, state)) c.inputs = state + delta_matrix_floats(p_);
      c.memory = own + size_;
    }
    cpu_delta_heads({chunks, static_cast<std::size_t>(count)});
  }
  static constexpr std::int64_t kMostHeads = 32;

  // Whether tasks have several heads, all value heads of their key heads.
  bool single() const { return op_.step->max_rows == 1 && p_.heads / p_.key_heads <= kMostHeads; }

  // The last inputs of the convolution in the states that a request's rows leave, for kPart
  // channels from `first` on.
  static constexpr std::int64_t kPart = 128;
  void inputs(std::int64_t r, std::int64_t first) const {
    const Rows rows = rows_of(r);
    if (single() && rows.count == 1 && leaves_inputs(rows, left(r, rows, rows.cached))) {
      return;  // heads() has written them
    }
    const std::int64_t kept = p_.conv - 1, n = std::min(kPart, p_.channels() - first);
    float old[8 * kPart];  // [kept, n] before the step; a slot that is written may have them
    for (std::int64_t i = 0; i < kept; ++i) {
      std::copy_n(earlier(rows, kept - i) + first, n, old + i * n);
    }
    for (std::int64_t t = 0; t < rows.count; ++t) {
      float* const state = left(r, rows, rows.cached + t);
      if (state == nullptr) continue;
      for (std::int64_t i = 0; i < kept; ++i) {
        const std::int64_t from = t - kept + 1 + i;
        const float* x = from < 0 ? old + (kept + from) * n : input(rows, from) + first;
        std::copy_n(x, n, state + delta_matrix_floats(p_) + i * p_.channels() + first);
      }
    }
  }

 private:
  const float* before(const Rows& rows, std::int64_t h) const {
    return rows.before == nullptr ? zeros_ : rows.before + h * size_;
  }
  // Whether heads() writes the last inputs: other tasks may still read those in the same slot.
  static bool leaves_inputs(const Rows& rows, const float* state) {
    return state != nullptr && state != rows.before;
  }
  // What a head's chunk from row `first` of the step on has in any case.
  DeltaChunk chunk(std::int64_t h, std::int64_t first) const {
    const std::int64_t key_head = h / (p_.heads / p_.key_heads);
    const std::int64_t gates = p_.gate_cols() / p_.heads;
    return {.problem = &p_,
            .q = key_head * p_.dk,
            .k = p_.key_cols() + key_head * p_.dk,
            .v = 2 * p_.key_cols() + h * p_.dv,
            .conv = op_.conv.data(),
            .decay = columns(op_.decay, first, h * gates),
            .beta = columns(op_.beta, first, h),
            .gate = columns(op_.gate, first, h * p_.dv),
            .a_log = op_.a_log[static_cast<std::size_t>(h)],
            .dt_bias = op_.dt_bias.data() + h * gates,
            .norm = op_.norm.data(),
            .norm_eps = op_.norm_eps,
            .out = {floats(op_.out.row(first)) + h * p_.dv, op_.out.row_stride}};
  }

  const DeltaRule& op_;
  const DeltaRuleProblem& p_;
  const std::int64_t size_;  // floats of a head's S
  const float* zeros_;
};

// Heads of a task in a step of single rows: few enough that threads share the work evenly.
// They are all value heads of some key heads, so that one task writes a key head's last inputs.
std::int64_t heads_of_task(const DeltaRuleProblem& p, std::int64_t requests, std::int64_t threads) {
  const std::int64_t all = requests * p.heads, of_key = p.heads / p.key_heads;
  const std::int64_t least = std::clamp<std::int64_t>(all / threads, 1, 8);
  const std::int64_t few = std::max(all / (4 * threads), least);
  const std::int64_t most = std::min(ceil_div(few, of_key) * of_key, std::int64_t{p.heads});
  return std::min(most, DeltaStep::kMostHeads / of_key * of_key);
}

}  // namespace

void cpu_delta_rule(const Execution& execution, Arena& arena, const DeltaRule& op) {
  const Arena::Scope scope(arena);
  const DeltaRuleProblem& p = op.problem;
  const std::int64_t size = std::int64_t{p.dk} * p.dv, requests = op.step->requests;
  // A state before the first token, or a row of x.
  const std::int64_t zeros = std::max(size, p.channels());
  auto* zero = arena.take_array<float>(zeros);
  std::fill_n(zero, zeros, 0.0f);
  const std::int64_t rows = std::clamp<std::int64_t>(op.step->rows, 1, kDeltaCpuRows);
  const std::int64_t floats_of_task = whole_lines(4 * (size + delta_chunk_floats(p, rows))) / 4;
  const DeltaStep step(op, zero);
  const std::int64_t of_thread = (step.single() ? 2 : 1) * floats_of_task;
  auto* memory = arena.take_array<float>(of_thread * thread_count(execution));
  if (step.single()) {
    const std::int64_t most = heads_of_task(p, requests, thread_count(execution));
    const std::int64_t tasks = ceil_div(std::int64_t{p.heads}, most);
    run_tasks(execution, requests * tasks, [&](std::int64_t i, int worker) {
      const std::int64_t first = i % tasks * most;
      step.heads(i / tasks, first, std::min(most, p.heads - first), floats_of_task,
                 memory + worker * of_thread);
    });
  } else {
    run_tasks(execution, requests * p.heads, [&](std::int64_t i, int worker) {
      step.head(i / p.heads, i % p.heads, rows, memory + worker * of_thread);
    });
  }
  const std::int64_t parts = ceil_div(p.channels(), DeltaStep::kPart);
  for_rows(execution, requests * parts, p.conv * DeltaStep::kPart,
           [&](std::int64_t i) { step.inputs(i / parts, i % parts * DeltaStep::kPart); });
}

}  // namespace lathe
