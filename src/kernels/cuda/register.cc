// Declares the Hopper kernels to the planner: capabilities, bounds and the measured shares of peak
// flops and bandwidth.
#include "kernels/cuda/register.h"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>

#include "kernels/cuda/sm90/gqa/gqa_limits.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/ragged/ragged_limits.h"
#ifdef LATHE_HAS_CUDA
#include "kernels/cuda/sm90/gqa/gqa_attend.h"
#include "kernels/cuda/sm90/latent/latent_attend.h"
#include "kernels/cuda/sm90/ragged/ragged_attend.h"
#endif

namespace lathe {
namespace {

#ifdef LATHE_HAS_CUDA
constexpr AttendFn kAttendLatent = cuda::attend_latent_on_device;
constexpr PrepareFn kPrepareLatent = cuda::prepare_latent_on_device;
constexpr AttendFn kAttendGqa = cuda::attend_gqa_on_device;
constexpr PrepareFn kPrepareGqa = cuda::prepare_gqa_on_device;
constexpr AttendFn kAttendRagged = cuda::attend_ragged_on_device;
constexpr PrepareFn kPrepareRagged = cuda::prepare_ragged_on_device;
#else
constexpr AttendFn kAttendLatent = nullptr;
constexpr PrepareFn kPrepareLatent = nullptr;
constexpr AttendFn kAttendGqa = nullptr;
constexpr PrepareFn kPrepareGqa = nullptr;
constexpr AttendFn kAttendRagged = nullptr;
constexpr PrepareFn kPrepareRagged = nullptr;
#endif

// One function serves every kind: the arguments say where keys are and what type q has.
Capability latent(ProblemKind problem, KernelKind kind) {
  Capability c;
  c.name = fmt::format("sm90.{}.{}", name(problem), name(kind));
  c.kind = kind;
  c.devices = {Device::sm90};
  c.problems = {problem};
  c.phases = EnumSet<Phase>::all();
  c.layouts = cuda::latent_layouts(problem);
  c.arithmetic = Arithmetic::bf16;
  c.wide_q = DType::bf16;
  c.heads = Accepts::range(1, cuda::kLatentHeads);
  c.page_sizes = Accepts::range(1, kMaxPageSize);
  c.nope = Accepts::list({cuda::latent_nope(problem)});
  c.rope = Accepts::list({cuda::kLatentRope});
  c.split_kv = true;
  c.split_bytes = cuda::kLatentPartialBytes;  // an extend that splits nothing stages pages there
  c.fixed_cuts = {.keys = cuda::kLatentFixedKeys,
                  .pieces = cuda::kLatentFixedPieces,
                  .block_rows = cuda::kLatentBlockRows,
                  .blocks = cuda::kLatentFixedBlocks};
  c.graph_safe = true;
  // From lathe bench attention on an H200, on mla_bf16: dense extend with 128 heads, decode with
  // 16.
  c.flops_share = 0.70;
  c.bytes_share = 0.86;
  c.launch_seconds = 10e-6;
  switch (kind) {
    case KernelKind::native:
      c.layouts = {LayoutKind::mla_bf16};
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

// Keys without a rotary part, which are their values.
Capability whole_latent(ProblemKind problem) {
  Capability c = latent(problem, KernelKind::inplace);
  c.name += fmt::format("_{}", cuda::kLatentValue);
  c.layouts = {LayoutKind::mla_bf16, LayoutKind::mla_fp8_block};
  c.rope = Accepts::list({0});
  return c;
}

// GEMMs of e4m3 by e4m3.
Capability latent_fp8(ProblemKind problem) {
  Capability c = latent(problem, KernelKind::native);
  c.name += "_fp8";
  c.layouts = {LayoutKind::mla_fp8};
  if (problem == ProblemKind::dense_latent) {
    std::vector<std::int64_t> pages;
    for (std::int32_t tokens = cuda::kLatentFp8Page; tokens <= kMaxPageSize; tokens *= 2) {
      pages.push_back(tokens);
    }
    c.page_sizes = Accepts::list(std::move(pages));
  }
  // From latent_gpu_bench on an H200: 128 requests of 4096 keys, with 128 heads and with 16.
  c.flops_share = 0.45;
  c.bytes_share = 0.71;
  return c;
}

template <std::size_t N>
Accepts one_of(const std::int32_t (&values)[N]) {
  return Accepts::list({std::begin(values), std::end(values)});
}

// The GEMMs are bf16 on both layouts.
Capability gqa(KernelKind kind) {
  Capability c;
  c.name = fmt::format("sm90.{}.{}", name(ProblemKind::grouped_query), name(kind));
  c.kind = kind;
  c.devices = {Device::sm90};
  c.problems = {ProblemKind::grouped_query};
  c.phases = EnumSet<Phase>::all();
  c.layouts = cuda::kGqaLayouts;
  c.heads = Accepts::range(1, cuda::kGqaHeads);
  c.page_sizes = one_of(cuda::kGqaPages);
  c.head_dim = one_of(cuda::kGqaHeadDims);
  c.equal_head_dims = true;
  c.whole_page_chunks = true;
  c.two_sources = false;
  c.split_kv = true;
  c.split_bytes = cuda::kGqaPartialBytes;
  c.fixed_cuts = {.keys = cuda::kGqaFixedKeys,
                  .pieces = cuda::kGqaFixedPieces,
                  .rows = cuda::kGqaFixedRows,
                  .block_rows = cuda::kGqaFixedMRows,
                  .blocks = 1};
  c.shared_prefixes = true;
  c.launch_seconds = 10e-6;
  if (kind == KernelKind::native) {
    c.layouts = {LayoutKind::gqa_bf16};
    c.homogeneous_only = true;
  }
  return c;
}

// Keys wider than their values.
Capability wide_keys(KernelKind kind) {
  Capability c = gqa(kind);
  c.name += fmt::format("_{}", cuda::kGqaWideKey);
  c.head_dim = Accepts::list({cuda::kGqaWideKey});
  c.value_head_dim = Accepts::list({cuda::kGqaWideKeyValue});
  c.equal_head_dims = false;
  return c;
}

// Latents narrower than 512, by the grouped-query kernels. A row that selects keys is a request of
// its own to them.
Capability narrow_latent(ProblemKind problem, const cuda::GqaLatent& widths) {
  Capability c = gqa(KernelKind::inplace);
  c.name = fmt::format("sm90.{}.{}_{}", name(problem), name(KernelKind::inplace), widths.nope);
  c.problems = {problem};
  if (problem == ProblemKind::sparse_latent) {
    c.page_sizes = Accepts::range(1, kMaxPageSize);
    c.shared_prefixes = false;
  }
  c.layouts = {LayoutKind::mla_bf16};
  c.arithmetic = Arithmetic::bf16;
  c.wide_q = DType::bf16;
  c.head_dim = Accepts::any();
  c.equal_head_dims = false;
  c.nope = Accepts::list({widths.nope});
  c.rope = widths.most_rope == 32 ? Accepts::list({32}) : Accepts::list({32, 64});
  c.window = false;
  return c;
}

// Expands each head's keys and values in bf16. Rows that select keys attend to all of them, so
// their context may be at most top-k.
Capability ragged(ProblemKind problem) {
  Capability c;
  c.name = fmt::format("sm90.{}.{}", name(problem), name(KernelKind::ragged));
  c.kind = KernelKind::ragged;
  c.devices = {Device::sm90};
  c.problems = {problem};
  c.phases = {Phase::extend};
  c.layouts = cuda::kRaggedLayouts;
  c.context_within_top_k = true;
  c.heads = Accepts::range(1, cuda::kRaggedHeads);
  c.page_sizes = Accepts::range(1, kMaxPageSize);
  c.nope = Accepts::list({cuda::kRaggedNope});
  c.rope = Accepts::list({cuda::kRaggedRope});
  c.qk_nope_head = one_of(cuda::kRaggedNopeHeads);
  c.v_head = one_of(cuda::kRaggedValueHeads);
  c.window = false;
  c.two_sources = false;
  c.split_kv = true;
  c.split_bytes = cuda::kGqaPartialBytes;
  c.expanded_bytes = cuda::kRaggedWorkspaceBytes;
  c.least_rows = cuda::kRaggedLeastRows;
  c.batch_invariant = false;  // the split depends on the lengths of the whole batch
  c.graph_safe = false;
  // From ragged_gpu_bench on an H100: 8192 rows of 128 heads, including the expansion.
  c.flops_share = 0.4;
  c.launch_seconds = 50e-6;
  return c;
}

}  // namespace

void register_sm90_kernels(Registry& registry) {
  for (const ProblemKind problem :
       {ProblemKind::dense_latent, ProblemKind::sparse_latent, ProblemKind::window_compressed}) {
    // At equal estimates the planner takes the first, so the order matters.
    for (const KernelKind kind : {KernelKind::inplace, KernelKind::native, KernelKind::gather}) {
      registry.add({latent(problem, kind), kAttendLatent, kPrepareLatent});
      if (problem != ProblemKind::window_compressed && kind == KernelKind::native) {
        registry.add({latent_fp8(problem), kAttendLatent, kPrepareLatent});
      }
    }
  }
  for (const ProblemKind problem : {ProblemKind::dense_latent, ProblemKind::sparse_latent}) {
    registry.add({whole_latent(problem), kAttendLatent, kPrepareLatent});
    registry.add({ragged(problem), kAttendRagged, kPrepareRagged});
  }
  for (const KernelKind kind : {KernelKind::inplace, KernelKind::native}) {
    registry.add({gqa(kind), kAttendGqa, kPrepareGqa});
    registry.add({wide_keys(kind), kAttendGqa, kPrepareGqa});
  }
  for (const cuda::GqaLatent& widths : cuda::kGqaLatents) {
    for (const ProblemKind problem : {ProblemKind::dense_latent, ProblemKind::sparse_latent}) {
      const bool lists = problem == ProblemKind::sparse_latent;
      if (lists && widths.nope != cuda::kGqaListedLatent) continue;
      registry.add({narrow_latent(problem, widths), kAttendGqa, kPrepareGqa});
    }
  }
}

}  // namespace lathe
