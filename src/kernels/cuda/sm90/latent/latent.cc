#include "kernels/cuda/sm90/latent/latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/latent/latent_call.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_kernels_512.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {
namespace {

struct LatentKernels {
  PartialLayout order;  // of the partials of m64 and swap_ab
  cudaError_t (*m64)(const LatentParams&, cudaStream_t);
  cudaError_t (*swap_ab)(const LatentParams&, int block_m, cudaStream_t);
  // For fp8 pages: stages listed pages; the m64 kernel for staged rows.
  cudaError_t (*stage)(const LatentParams&, const LatentStageArrays&, cudaStream_t) = nullptr;
  cudaError_t (*m64_staged)(const LatentParams&, cudaStream_t) = nullptr;
};
constexpr LatentKernels kMlaBf16{PartialLayout::m64, launch_m64_mla_bf16, launch_swap_ab_mla_bf16};
constexpr LatentKernels kMlaFp8{PartialLayout::swapped, launch_m64_mla_fp8, launch_swap_ab_mla_fp8,
                                launch_stage_mla_fp8, launch_m64_mla_bf16};
constexpr LatentKernels kMlaFp8Block{PartialLayout::swapped, launch_m64_mla_fp8_block,
                                     launch_swap_ab_mla_fp8_block, launch_stage_mla_fp8_block,
                                     launch_m64_mla_bf16};
// mla_fp8_block without RoPE; staged rows are bf16, 512 wide.
constexpr LatentKernels kMlaFp8Block512{PartialLayout::swapped, launch_m64_mla_fp8_block_512,
                                        launch_swap_ab_mla_fp8_block_512,
                                        launch_stage_mla_fp8_block_512, launch_m64_mla_bf16_512};
constexpr LatentKernels kV4Fp8{PartialLayout::swapped, launch_m64_v4_fp8, launch_swap_ab_v4_fp8,
                               launch_stage_v4_fp8, launch_m64_mla_bf16_512};
constexpr LatentKernels kMlaBf16Rows512{PartialLayout::m64, launch_m64_mla_bf16_512,
                                        launch_swap_ab_mla_bf16_512};

Error wrong(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
}

/// The kernels for pages of a layout; null if there are none. `whole`: the key is the value, as in
/// V4 and in MLA without RoPE.
constexpr const LatentKernels* kernels_of(LayoutKind layout, bool whole) {
  if (layout == LayoutKind::mla_bf16) return whole ? &kMlaBf16Rows512 : &kMlaBf16;
  if (layout == LayoutKind::mla_fp8) return &kMlaFp8;
  if (layout == LayoutKind::mla_fp8_block) return whole ? &kMlaFp8Block512 : &kMlaFp8Block;
  if (layout == LayoutKind::v4_fp8) return &kV4Fp8;
  return nullptr;
}
static_assert(std::ranges::all_of(enum_values<LayoutKind>(),
                                  [](LayoutKind layout) {
                                    return kLatentLayouts.contains(layout) ==
                                           (kernels_of(layout, false) != nullptr);
                                  }),
              "kLatentLayouts are the layouts that have kernels");

Result<LatentKernels> kernels_of(const AttendArgs& args) {
  const bool whole = args.problem.v_dim() == args.problem.qk_dim();
  const LayoutKind layout = args.main.pool ? args.main.pool->layout.kind() : LayoutKind::mla_bf16;
  if (const LatentKernels* kernels = kernels_of(layout, whole)) return *kernels;
  return wrong("main.pool.layout", kLatentLayouts.names(), std::string(name(layout)));
}

Result<void> check_entries(const char* field, std::size_t entries, std::int64_t wanted) {
  if (std::cmp_greater_equal(entries, wanted)) return {};
  return wrong(field, fmt::format("{} entries", wanted), fmt::format("{}", entries));
}

/// Checks one list of a schedule. fields: its arrays' names for messages; null: it has none.
Result<void> check_list(const char* const (&fields)[3], const WorkBuffers& list,
                        const LatentShares& of) {
  if (auto ok = check_entries(fields[0], list.items.size(), of.items); !ok) return ok;
  if (fields[1] != nullptr) {
    if (auto ok = check_entries(fields[1], list.row_items.size(), of.work_tiles + 1); !ok)
      return ok;
  }
  return check_entries(fields[2], list.worker_items.size(), of.work.workers + std::int64_t{1});
}

Result<void> check_schedule(const LatentSchedule& schedule) {
  constexpr const char* kList[] = {"schedule.list.items", "schedule.list.row_items",
                                   "schedule.list.worker_items"};
  constexpr const char* kTail[] = {"schedule.tail.items", "schedule.tail.row_items",
                                   "schedule.tail.worker_items"};
  const LatentCut& cut = schedule.cut;
  if (cut.shared) {
    constexpr const char* kShared[] = {kList[0], nullptr, kList[2]};
    if (auto ok = check_list(kShared, schedule.list, cut.all); !ok) return ok;
    return check_entries("schedule.split_tiles", schedule.split_tiles.size(), cut.split_entries());
  }
  auto ok = check_list(kList, schedule.list, cut.all);
  if (!ok || schedule.cut.tail.work_tiles == 0) return ok;
  return check_list(kTail, schedule.tail, schedule.cut.tail);
}

/// Launches a kernel for all work tiles of a call, and the combine.
struct LatentLaunches {
  const LatentSchedule& schedule;
  DType q;
  cudaStream_t stream;
  const char* last = "latent";  // the kernel launched last, for messages

  template <class Kernel>
  cudaError_t attend(const Kernel& kernel, PartialLayout order, const LatentParams& p) {
    const LatentCut& cut = schedule.cut;
    const cudaError_t status =
        attend(kernel, order, first_work_tiles(p, schedule), cut.all.work_tile_items);
    if (status != cudaSuccess || cut.tail.work_tiles == 0) return status;
    return attend(kernel, order, last_work_tiles(p, schedule, q), cut.tail.work_tile_items);
  }

 private:
  template <class Kernel>
  cudaError_t attend(const Kernel& kernel, PartialLayout order, const LatentParams& p,
                     std::int64_t work_tile_items) {
    last = "latent";
    const cudaError_t status = kernel(p, stream);
    if (status != cudaSuccess || !p.cut) return status;
    last = "latent_combine";
    return launch_latent_combine(p, order, schedule.cut.block_m, work_tile_items, stream);
  }
};

/// Stages the listed pages of a call, then runs it.
cudaError_t attend_staged(const LatentKernels& kernels, LatentParams& p, LatentLaunches& launches,
                          std::byte* workspace) {
  const LatentCut& cut = launches.schedule.cut;
  const LatentStaging staging(cut, workspace);
  launches.last = "latent_stage";
  cudaError_t status =
      cudaMemsetAsync(staging.zeros.data(), 0, staging.zeros.size_bytes(), launches.stream);
  if (status == cudaSuccess) status = kernels.stage(p, staging.arrays, launches.stream);
  if (staging.may_overflow) p.overflow = staging.arrays.overflow;
  if (status == cudaSuccess) {
    status = launches.attend(kernels.m64_staged, PartialLayout::m64, staging.rows_of(p, cut));
  }
  if (status != cudaSuccess || !staging.may_overflow) return status;
  p.overflowed = true;
  return launches.attend(kernels.m64, kernels.order, p);
}

}  // namespace

Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream, std::source_location where) {
  const LatentParams p = latent_params(args, {}, schedule);
  const LatentCut& cut = schedule.cut;
  const auto work_tiles = static_cast<std::size_t>(cut.work_tiles());
  if (cut.shared) {
    if (auto ok = check_schedule(schedule); !ok) return ok;
    const cudaError_t status = launch_latent_share(p, latent_sharing(schedule), stream);
    if (status == cudaSuccess) return {};
    return launch_result(status, {"latent_share", fmt::format("{} work tiles", work_tiles), where});
  }
  if (auto ok = check_entries("schedule.work_tile_keys", schedule.work_tile_keys.size(),
                              cut.work_tiles());
      !ok)
    return ok;
  if (auto ok = check_schedule(schedule); !ok) return ok;
  const cudaError_t status =
      launch_latent_count(p, cut.keys, schedule.work_tile_keys.data(), stream);
  if (auto ok =
          launch_result(status, {"latent_count", fmt::format("{} work tiles", work_tiles), where});
      !ok) {
    return ok;
  }
  const auto first = static_cast<std::size_t>(cut.all.work_tiles);
  if (auto ok = plan_work({schedule.work_tile_keys.first(first), {}}, cut.all.work, schedule.list,
                          schedule.work_workspace, stream, where);
      !ok || cut.tail.work_tiles == 0) {
    return ok;
  }
  return plan_work({schedule.work_tile_keys.subspan(first, work_tiles - first), {}}, cut.tail.work,
                   schedule.tail, schedule.work_workspace, stream, where);
}

Result<void> attend_latent(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule, std::span<std::byte> workspace,
                           cudaStream_t stream, std::source_location where) {
  if (auto ok = check_latent_call(args); !ok) return ok;
  const bool fp8 = args.q.dtype == DType::e4m3;
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
  if (cut.work_tiles() == 0) return {};
  if (auto ok = check_schedule(schedule); !ok) return ok;
  LatentParams p = latent_params(args, row_request, schedule);
  p.partial_out = reinterpret_cast<float*>(workspace.data());
  p.partial_lse = p.partial_out + cut.partials() * cut.m_blocks * cut.block_m * kLatentValue;
  const auto shape = [&] {
    return fmt::format("{} rows of {} heads, {} keys a work tile at most", args.q.rows,
                       args.problem.heads, cut.keys);
  };
  const bool swap_ab = cut.block_m < 64;
  const PartialLayout order = fp8 ? PartialLayout::swapped
                              : swap_ab && kernels.value().order == PartialLayout::m64
                                  ? PartialLayout::rows
                                  : kernels.value().order;
  LatentLaunches launches{schedule, args.q.dtype, stream};
  const auto with_block_m = [&](auto launch) {
    return [launch, &cut](const LatentParams& work_tiles, cudaStream_t on) {
      return launch(work_tiles, cut.block_m, on);
    };
  };
  const cudaError_t status =
      fp8       ? launches.attend(with_block_m(launch_native_mla_fp8), order, p)
      : swap_ab ? launches.attend(with_block_m(kernels.value().swap_ab), order, p)
      : staged  ? attend_staged(kernels.value(), p, launches, workspace.data())
                : launches.attend(kernels.value().m64, order, p);
  // The message is formatted only on failure: it costs half as much as a launch.
  if (status != cudaSuccess) return launch_result(status, {launches.last, shape(), where});
  return {};
}

}  // namespace lathe::cuda
