#include "attn/attend_op.h"

namespace lathe {

Result<const Kernel*> kernel_of(const AttendOp& op) {
  const Kernel* kernel = op.registry->find(op.step->route->kernel);
  if (kernel != nullptr && kernel->attend != nullptr) return kernel;
  return Error{ErrorCode::unsupported, "kernel", "one that this build holds",
               op.step->route->kernel, ""};
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
  if (op.slots_width > 0) {
    a.main.indices = op.slots;
    a.main.index_width = op.slots_width;
  } else {
    a.main.page_table = {step.page_table.data, static_cast<std::size_t>(step.page_table.requests *
                                                                        step.page_table.width)};
    a.main.table_width = step.page_table.width;
  }
  a.sink = op.sink;
  a.expansion = op.expansion;
  a.out = op.out;
  a.execution = execution;
  return a;
}

}  // namespace lathe
