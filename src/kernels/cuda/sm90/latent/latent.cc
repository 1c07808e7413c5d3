#include "kernels/cuda/sm90/latent/latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/latent/latent_staging.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

struct LatentKernels {
  PartOrder order;  // of the first one's parts
  cudaError_t (*wide)(const LatentParams&, cudaStream_t);
  cudaError_t (*narrow)(const LatentParams&, int tile_lines, cudaStream_t);
  // Of fp8 pages: decodes those that lists name; the kernel for 64 lines of these.
  cudaError_t (*stage)(const LatentParams&, const LatentStageArrays&, cudaStream_t) = nullptr;
  cudaError_t (*wide_staged)(const LatentParams&, cudaStream_t) = nullptr;
};
constexpr LatentKernels kMlaBf16{PartOrder::wide, launch_wide_mla_bf16, launch_narrow_mla_bf16};
constexpr LatentKernels kMlaFp8{PartOrder::turned, launch_wide_mla_fp8, launch_narrow_mla_fp8,
                                launch_stage_mla_fp8, launch_wide_mla_bf16};
constexpr LatentKernels kMlaFp8Block{PartOrder::turned, launch_wide_mla_fp8_block,
                                     launch_narrow_mla_fp8_block, launch_stage_mla_fp8_block,
                                     launch_wide_mla_bf16};
constexpr LatentKernels kV4Fp8{PartOrder::turned, launch_wide_v4_fp8, launch_narrow_v4_fp8,
                               launch_stage_v4_fp8, launch_wide_v4_bf16};
constexpr LatentKernels kV4Bf16{PartOrder::wide, launch_wide_v4_bf16, launch_narrow_v4_bf16};

constexpr std::int64_t kPair = 2 * kLatentTile;

std::int64_t up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

Error wrong(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
}

/// What fp8 arithmetic, for an e4m3 q on e4m3 pages by page table, takes.
Result<void> check_fp8_call(const AttendArgs& args, const LatentCut& cut) {
  if (cut.tile_lines != 64) {
    return wrong("schedule.cut.tile_lines", "64 where q is e4m3",
                 fmt::format("{}", cut.tile_lines));
  }
  if (!args.main.pool || args.main.pool->layout.kind() != LayoutKind::mla_fp8) {
    return wrong("main.pool.layout", "mla_fp8 where q is e4m3",
                 args.main.pool ? std::string(name(args.main.pool->layout.kind())) : "bf16 rows");
  }
  const ConstPoolView& pool = *args.main.pool;
  if (args.main.index_width > 0 || args.main.table_width == 0) {
    return wrong("main.index_width", "a page table and no index list where q is e4m3",
                 fmt::format("{}", args.main.index_width));
  }
  if (!latent_fp8_page(pool.page_size)) {
    return wrong("main.pool.page_size",
                 fmt::format("a power of two from {} on where q is e4m3", kLatentFp8Page),
                 fmt::format("{}", pool.page_size));
  }
  // Copies move 16 bytes at least.
  const auto aligned = [](const std::byte* p, std::int64_t stride) {
    return (reinterpret_cast<std::uintptr_t>(p) | static_cast<std::uintptr_t>(stride)) % 16 == 0;
  };
  if (!aligned(pool.data, pool.page_stride)) {
    return wrong("main.pool", "pages that begin at multiples of 16 bytes",
                 fmt::format("{} and a stride of {}", static_cast<const void*>(pool.data),
                             pool.page_stride));
  }
  if (!aligned(args.q.data, args.q.row_stride)) {
    return wrong("q", "rows that begin at multiples of 16 bytes",
                 fmt::format("{} and a stride of {}", static_cast<const void*>(args.q.data),
                             args.q.row_stride));
  }
  return {};
}

/// The kernels for a call's keys.
Result<LatentKernels> kernels_of(const AttendArgs& args) {
  const bool v4 = args.problem.v_dim() == args.problem.qk_dim();
  if (!args.main.pool) return v4 ? kV4Bf16 : kMlaBf16;
  switch (args.main.pool->layout.kind()) {
    case LayoutKind::mla_bf16:
      return v4 ? kV4Bf16 : kMlaBf16;
    case LayoutKind::mla_fp8:
      return kMlaFp8;
    case LayoutKind::mla_fp8_block:
      return kMlaFp8Block;
    case LayoutKind::v4_fp8:
      return kV4Fp8;
    default:
      return wrong("main.pool.layout", "mla_bf16, mla_fp8, mla_fp8_block or v4_fp8",
                   std::string(name(args.main.pool->layout.kind())));
  }
}

Result<void> check_call(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  if (p.nope != latent_nope(p.kind) || p.rope != kLatentRope) {
    return wrong("problem", fmt::format("{} + {} dimensions", latent_nope(p.kind), kLatentRope),
                 fmt::format("{} + {}", p.nope, p.rope));
  }
  if (args.q.dtype != DType::bf16 && args.q.dtype != DType::e4m3) {
    return wrong("q.dtype", "bf16 or e4m3", std::string(name(args.q.dtype)));
  }
  if (args.out.dtype != DType::bf16) {
    return wrong("out.dtype", "bf16", std::string(name(args.out.dtype)));
  }
  if (args.lse.data != nullptr && args.lse.dtype != DType::f32) {
    return wrong("lse.dtype", "f32", std::string(name(args.lse.dtype)));
  }
  return {};
}

/// A call whose lists' pages are decoded first.
cudaError_t attend_staged(const LatentKernels& kernels, LatentParams& p, const LatentCut& cut,
                          std::byte* workspace, cudaStream_t stream) {
  const LatentStaging staging(cut, workspace);
  cudaError_t status = cudaMemsetAsync(workspace, 0, staging.zeros, stream);
  if (status == cudaSuccess) status = kernels.stage(p, staging.arrays, stream);
  if (staging.may_overflow) p.overflow = staging.arrays.overflow;
  if (status == cudaSuccess) status = kernels.wide_staged(staging.rows_of(p, cut), stream);
  if (status != cudaSuccess || !staging.may_overflow) return status;
  p.overflowed = true;
  return kernels.wide(p, stream);
}

}  // namespace

LatentCut cut_latent(const LatentShape& s) {
  LatentCut c;
  const std::int64_t lines =
      s.dense ? s.heads * std::max<std::int64_t>(s.request_rows, 1) : s.heads;
  c.tile_lines = s.fp8 || lines > 32 ? 64 : lines > 16 ? 32 : lines > 8 ? 16 : 8;
  c.tiles = static_cast<std::int32_t>(std::max<std::int64_t>(up(lines, c.tile_lines), 1));
  c.units = s.dense ? s.requests : s.rows;
  const std::int64_t blocks = std::max<std::int64_t>(s.processors / c.tiles, 1);
  const std::int64_t pairs = std::max<std::int64_t>(up(s.keys, kPair), 1);
  // Pairs of tiles (2 to 5 us by a block) that filling and emptying the pipeline cost, the combination's
  // launch, and each of a unit's parts.
  constexpr double kItem = 3, kSplit = 1.3, kPart = 0.02;
  std::int64_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t n = 1; n <= std::min<std::int64_t>(pairs, blocks); ++n) {
    const std::int64_t each = up(pairs, n);
    const std::int64_t items = c.units * up(pairs, each);
    if (n > 1 && items * c.tiles * c.tile_lines * (kLatentValue + 1) * 4 > kLatentPartBytes) break;
    const double cost =
        static_cast<double>(up(items, blocks)) * (static_cast<double>(each) + kItem) +
        (n > 1 ? kSplit + kPart * static_cast<double>(n) : 0);
    if (cost < least) {
      least = cost;
      best = n;
    }
  }
  const std::int64_t each = up(pairs, best);
  c.work.workers = static_cast<std::int32_t>(
      std::min<std::int64_t>(blocks, std::max<std::int64_t>(c.units * up(pairs, each), 1)));
  c.work.block = static_cast<std::int32_t>(kPair);
  c.work.fixed_split = static_cast<std::int32_t>(each * kPair);
  c.items = max_work_items(c.units, s.keys, c.work);
  c.unit_items = up(pairs, each);
  c.keys = s.keys;
  LatentCut staged = c;
  stage_latent(s, staged);
  return stage_pays(s, staged) ? staged : c;
}

Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream, std::source_location where) {
  const LatentParams p = latent_params(args, {}, schedule);
  const auto units = static_cast<std::size_t>(schedule.cut.units);
  if (schedule.unit_keys.size() < units) {
    return wrong("schedule.unit_keys", fmt::format("{} entries", units),
                 fmt::format("{}", schedule.unit_keys.size()));
  }
  const cudaError_t status =
      launch_latent_count(p, schedule.cut.keys, schedule.unit_keys.data(), stream);
  if (auto ok = launch_result(status, {"latent_count", fmt::format("{} units", units), where});
      !ok) {
    return ok;
  }
  return plan_work({schedule.unit_keys.first(units), {}}, schedule.cut.work, schedule.list,
                   schedule.work_workspace, stream, where);
}

Result<void> attend_latent(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule, std::span<std::byte> workspace,
                           cudaStream_t stream, std::source_location where) {
  if (auto ok = check_call(args); !ok) return ok;
  const bool fp8 = args.q.dtype == DType::e4m3;
  if (fp8) {
    if (auto ok = check_fp8_call(args, schedule.cut); !ok) return ok;
  }
  const auto kernels = kernels_of(args);
  if (!kernels) return kernels.error();
  const LatentCut& cut = schedule.cut;
  const bool staged = cut.main.room > 0;
  if (staged) {
    if (auto ok = check_staged(args, cut); !ok) return ok;
  }
  if (std::ssize(workspace) < cut.workspace_bytes()) {
    return wrong("workspace", fmt::format("{} bytes", cut.workspace_bytes()),
                 fmt::format("{}", workspace.size()));
  }
  if (cut.units == 0) return {};
  LatentParams p = latent_params(args, row_request, schedule);
  p.part_out = reinterpret_cast<float*>(workspace.data());
  p.part_lse = p.part_out + cut.items * cut.tiles * cut.tile_lines * 512;
  const auto shape = [&] {
    return fmt::format("{} rows of {} heads, {} keys a unit at most", args.q.rows,
                       args.problem.heads, cut.work.fixed_split * cut.unit_items);
  };
  const bool narrow = cut.tile_lines < 64;
  const PartOrder order = fp8 ? PartOrder::turned
                          : narrow && kernels.value().order == PartOrder::wide
                              ? PartOrder::rows
                              : kernels.value().order;
  const cudaError_t status = fp8      ? launch_native_mla_fp8(p, stream)
                             : narrow ? kernels.value().narrow(p, cut.tile_lines, stream)
                             : staged
                                 ? attend_staged(kernels.value(), p, cut, workspace.data(), stream)
                                 : kernels.value().wide(p, stream);
  // The words for an error take as long as half a launch.
  if (status != cudaSuccess) return launch_result(status, {"latent", shape(), where});
  if (!p.cut) return {};
  const cudaError_t combined =
      launch_latent_combine(p, order, cut.tile_lines, cut.unit_items, stream);
  if (combined != cudaSuccess) return launch_result(combined, {"latent_combine", shape(), where});
  return {};
}

}  // namespace lathe::cuda
