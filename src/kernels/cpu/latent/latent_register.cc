#include "kernels/cpu/latent/latent_register.h"

#include <fmt/format.h>

#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/cpu/latent/latent_plan.h"

namespace lathe {
namespace {

Capability latent(ProblemKind problem, KernelKind kind) {
  Capability c;
  c.name = fmt::format("cpu.{}.{}", name(problem), name(kind));
  c.kind = kind;
  c.devices = {Device::cpu};
  c.problems = {problem};
  c.phases = EnumSet<Phase>::all();
  c.layouts = layouts_of(problem);  // the codec decodes any
  // Operands are bf16, or e4m3 for kind native on an fp8 cache. Products and sums are always f32,
  // as CPUs have no fp8 arithmetic.
  c.arithmetic = Arithmetic::bf16;
  c.split_kv = true;
  c.wide_q = DType::f32;
  c.split_bytes = kLatentPartBytes;
  c.flops_share = 0.7;  // measured with 16 heads (lathe bench); 0.85 from 64 heads on
  c.launch_seconds = 2e-6;
  switch (kind) {
    case KernelKind::native:
      c.homogeneous_only = true;
      break;
    case KernelKind::gather:
      c.set_gather(LayoutKind::mla_bf16);
      break;
    default:
      break;
  }
  return c;
}

}  // namespace

void register_cpu_latent_kernels(Registry& registry) {
  for (const ProblemKind problem :
       {ProblemKind::dense_latent, ProblemKind::sparse_latent, ProblemKind::window_compressed}) {
    // Among equal estimates the planner chooses the first.
    for (const KernelKind kind : {KernelKind::inplace, KernelKind::native, KernelKind::gather}) {
      registry.add({latent(problem, kind), cpu_attend_latent, cpu_prepare_latent});
    }
  }
}

}  // namespace lathe
