#include "kernels/cpu/grouped_query/gqa_register.h"

#include <fmt/format.h>

#include "kernels/cpu/grouped_query/gqa_attend.h"
#include "kernels/cpu/grouped_query/gqa_plan.h"
#include "kernels/cpu/grouped_query/gqa_task.h"

namespace lathe {
namespace {

Capability gqa_capability(KernelKind kind) {
  Capability c;
  c.name = fmt::format("cpu.{}.{}", name(ProblemKind::grouped_query), name(kind));
  c.kind = kind;
  c.devices = {Device::cpu};
  c.problems = {ProblemKind::grouped_query};
  c.phases = EnumSet<Phase>::all();
  c.layouts = {LayoutKind::gqa_bf16, LayoutKind::gqa_fp8};
  c.heads = Accepts::range(1, 1024);
  c.head_dim = {16, kGqaMaxHeadDim, 16, {}};
  c.two_sources = false;
  c.wide_q = DType::f32;
  c.split_kv = true;
  c.split_bytes = kGqaPartBytes;
  c.graph_safe = false;
  // Measured on two Zen 5 cores: extend of 2048 tokens, and decode over 32768 bf16 keys.
  c.flops_share = 0.65;
  c.bytes_share = 0.7;
  c.launch_seconds = 1e-5;
  if (kind == KernelKind::native) c.homogeneous_only = true;
  if (kind == KernelKind::gather) c.set_gather(LayoutKind::gqa_bf16);
  return c;
}

}  // namespace

void register_cpu_gqa_kernels(Registry& registry) {
  for (KernelKind kind : {KernelKind::inplace, KernelKind::native, KernelKind::gather}) {
    registry.add({gqa_capability(kind), cpu_attend_gqa, cpu_prepare_gqa});
  }
}

}  // namespace lathe
