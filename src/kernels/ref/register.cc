#include "kernels/ref/register.h"

#include <fmt/format.h>

#include <array>

#include "kernels/ref/attend_gqa.h"
#include "kernels/ref/attend_latent.h"
#include "kernels/ref/attend_ragged.h"

namespace lathe {
namespace {

// The simplest kind first: among equal estimates the planner chooses the first.
constexpr std::array kPreferred = {KernelKind::inplace, KernelKind::native, KernelKind::gather,
                                   KernelKind::ragged};

// The oracle's speed is only compared among its own kinds, so it declares the host's full peaks and
// no launch cost.
Capability oracle(ProblemKind problem, KernelKind kind) {
  Capability c;
  c.name = fmt::format("ref.{}.{}", name(problem), name(kind));
  c.kind = kind;
  c.devices = {Device::ref};
  c.problems = {problem};
  c.phases = EnumSet<Phase>::all();
  c.layouts = layouts_of(problem);  // decode_token() decodes any
  c.arithmetic = Arithmetic::f64;
  c.wide_q = DType::f32;
  c.flops_share = 1;
  c.bytes_share = 1;
  c.launch_seconds = 0;
  const bool gqa = problem == ProblemKind::grouped_query;
  if (gqa) c.heads = Accepts::range(1, 1024);
  switch (kind) {
    case KernelKind::inplace:
      break;
    case KernelKind::native:
      c.homogeneous_only = true;
      break;
    case KernelKind::gather:
      c.set_gather(gqa ? LayoutKind::gqa_bf16 : LayoutKind::mla_bf16);
      break;
    case KernelKind::ragged:
      c.phases = {Phase::extend};
      c.context_within_top_k = true;
      break;
  }
  return c;
}

// One function serves gather, inplace and native: the arguments say where the keys are, and the
// arithmetic is double in any case.
AttendFn entry(ProblemKind problem, KernelKind kind) {
  if (kind == KernelKind::ragged) return ref_attend_ragged;
  return problem == ProblemKind::grouped_query ? ref_attend_gqa : ref_attend_latent;
}

}  // namespace

void register_ref_kernels(Registry& registry) {
  for (ProblemKind problem : enum_values<ProblemKind>()) {
    for (KernelKind kind : kPreferred) {
      // Only MLA's latents expand to per-head keys and values.
      const bool latent =
          problem == ProblemKind::dense_latent || problem == ProblemKind::sparse_latent;
      if (kind == KernelKind::ragged && !latent) continue;
      registry.add({oracle(problem, kind), entry(problem, kind)});
    }
  }
}

}  // namespace lathe
