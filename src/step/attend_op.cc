#include "step/attend_op.h"

#include <algorithm>

namespace lathe {
namespace {

void list_keys(const AttendOp& op, KeySource& source) {
  source.indices = op.slots;
  source.index_width = op.slots_width;
}

void list_window(const StepView& step, KeySource& source) {
  source.indices = {reinterpret_cast<const std::int32_t*>(step.window_slots.data()),
                    step.window_slots.size()};
  source.index_width = step.window_width;
  source.index_lengths = step.window_lens;
}

void table_keys(const PageTableView& table, KeySource& source) {
  source.page_table = {table.data, static_cast<std::size_t>(table.requests * table.width)};
  source.table_width = table.width;
}

}  // namespace

Result<const Kernel*> kernel_of(const Route& route) {
  const Kernel* kernel = route.bound.kernel;
  if (kernel != nullptr && kernel->attend != nullptr) return kernel;
  return Error{ErrorCode::unsupported, "kernel", "one that this build holds", route.kernel, ""};
}

std::int64_t slots_width(const AttentionProblem& problem, const StepView& step) {
  // Expanded attention uses all keys. The planner allows it only while top-k would select all.
  if (!problem.sparse() || step.rows == 0 || step.route->kind == KernelKind::ragged) return 0;
  const std::int64_t keys =
      problem.two_sources() ? step.max_context / problem.compress_ratio : step.max_context;
  return std::max<std::int64_t>(1, std::min<std::int64_t>(problem.listed_keys(), keys));
}

std::int64_t entries_width(const Plan& plan, const StepView& step) {
  const AttentionProblem& p = plan.problem;
  if (!is_gpu(plan.device) || !p.two_sources() || p.sparse() || step.rows == 0) return 0;
  return std::max<std::int64_t>(1, step.max_context / p.compress_ratio);
}

AttendArgs attend_args(const AttendOp& op, const Execution& execution) {
  const StepView& step = *op.step;
  AttendArgs a;
  a.problem = op.plan->problem;
  a.q = op.q;
  a.q_indptr = step.q_indptr;
  a.kv_lens = step.kv_lens;
  a.main.pool = op.pool;
  if (op.pool.layout.scale_policy() == ScalePolicy::per_tensor) {
    a.main.key_scale = op.scales.key;
    if (is_gqa(op.pool.layout.kind())) a.main.value_scale = op.scales.value;
  }
  const bool two = a.problem.two_sources();
  const bool listed = a.problem.kind == ProblemKind::window_compressed && is_gpu(op.plan->device);
  if (listed) {
    list_window(step, a.main);
  } else if (op.slots_width > 0 && !two) {
    list_keys(op, a.main);
  } else {
    table_keys(step.page_table, a.main);
  }
  if (two) {
    a.extra.pool = op.compressed;
    if (op.slots_width > 0) {
      list_keys(op, a.extra);
      if (listed) a.extra.index_lengths = step.compressed_lens;
    } else if (!listed) {
      table_keys(step.compressed_table, a.extra);
    }
  }
  a.sink = op.sink;
  a.expansion = op.expansion;
  a.out = op.out;
  a.max_request_rows = step.max_rows;
  a.max_kv_len = step.max_context;
  a.total_keys = step.total_context;
  a.prefixes = step.prefixes;
  a.schedule = step.schedule;
  a.execution = execution;
  return a;
}

Result<void> make_schedule(const Plan& plan, const KeyPools& pools, const Execution& execution,
                           Schedule& schedule, StepView& step) {
  step.schedule = nullptr;
  if (step.rows == 0 || step.route->adapter) return {};
  const Kernel* kernel = step.route->bound.kernel;
  if (kernel == nullptr || kernel->prepare == nullptr) return {};
  const AttentionProblem& p = plan.problem;
  AttendOp op{.plan = &plan, .step = &step, .pool = pools.main, .compressed = pools.compressed};
  op.slots_width = std::max(slots_width(p, step), entries_width(plan, step));
  op.q.dtype = step.route->q_dtype;
  op.q.rows = op.out.rows = step.rows;
  const bool expanded = step.route->kind == KernelKind::ragged;
  const std::int64_t q_width = expanded ? p.qk_nope_head + p.rope : p.qk_dim();
  const std::int64_t out_width = expanded ? p.v_head : p.v_dim();
  op.q.cols = op.q.row_stride = p.heads * q_width;
  op.out.cols = op.out.row_stride = p.heads * out_width;
  if (auto ok = kernel->prepare(attend_args(op, execution), schedule); !ok) return ok;
  step.schedule = &schedule;
  return {};
}

}  // namespace lathe
