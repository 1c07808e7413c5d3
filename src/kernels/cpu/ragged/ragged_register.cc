#include "kernels/cpu/ragged/ragged_register.h"

#include <fmt/format.h>

#include "kernels/cpu/ragged/ragged_attend.h"
#include "kernels/cpu/ragged/ragged_task.h"

namespace lathe {

void register_cpu_ragged_kernels(Registry& registry) {
  for (ProblemKind problem : {ProblemKind::dense_latent, ProblemKind::sparse_latent}) {
    Capability c;
    c.name = fmt::format("cpu.{}.{}", name(problem), name(KernelKind::ragged));
    c.kind = KernelKind::ragged;
    c.devices = {Device::cpu};
    c.problems = {problem};
    c.phases = {Phase::extend};
    c.layouts = layouts_of(problem);  // the codec decodes any
    c.context_within_top_k = true;
    c.two_sources = false;
    c.wide_q = DType::f32;
    c.worker_rows = kRaggedTaskRows;
    c.graph_safe = false;
    c.flops_share = 0.75;  // measured on two Zen 5 cores, extend of 2048 tokens
    c.launch_seconds = 1e-5;
    registry.add({c, cpu_attend_ragged});
  }
}

}  // namespace lathe
