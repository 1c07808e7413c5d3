#include "kernels/cuda/sm90/latent/latent.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/latent/latent_call.h"
#include "kernels/cuda/sm90/latent/latent_kernels.h"
#include "kernels/cuda/sm90/latent/latent_launch.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"
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

Error wrong(std::string field, std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, std::move(field), std::move(wanted), std::move(offered), ""};
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

Result<void> check_room(const char* field, std::size_t entries, std::int64_t wanted) {
  if (std::cmp_greater_equal(entries, wanted)) return {};
  return wrong(field, fmt::format("{} entries", wanted), fmt::format("{}", entries));
}

/// Of a list of a schedule, whose arrays have these names.
Result<void> check_list(const char* const (&fields)[3], const WorkBuffers& list,
                        const LatentShares& of) {
  if (auto ok = check_room(fields[0], list.items.size(), of.items); !ok) return ok;
  if (auto ok = check_room(fields[1], list.row_items.size(), of.units + 1); !ok) return ok;
  return check_room(fields[2], list.worker_items.size(), of.work.workers + std::int64_t{1});
}

Result<void> check_schedule(const LatentSchedule& schedule) {
  constexpr const char* kList[] = {"schedule.list.items", "schedule.list.row_items",
                                   "schedule.list.worker_items"};
  constexpr const char* kTail[] = {"schedule.tail.items", "schedule.tail.row_items",
                                   "schedule.tail.worker_items"};
  auto ok = check_list(kList, schedule.list, schedule.cut.all);
  if (!ok || schedule.cut.tail.units == 0) return ok;
  return check_list(kTail, schedule.tail, schedule.cut.tail);
}

/// A kernel for all units of a call, and what puts parts of theirs together.
struct LatentLaunches {
  const LatentSchedule& schedule;
  cudaStream_t stream;
  const char* last = "latent";  // kernel that was launched

  template <class Kernel>
  cudaError_t attend(const Kernel& kernel, PartOrder order, const LatentParams& p) {
    const LatentCut& cut = schedule.cut;
    const cudaError_t status = attend(kernel, order, first_units(p, schedule), cut.all.unit_items);
    if (status != cudaSuccess || cut.tail.units == 0) return status;
    return attend(kernel, order, last_units(p, schedule), cut.tail.unit_items);
  }

 private:
  template <class Kernel>
  cudaError_t attend(const Kernel& kernel, PartOrder order, const LatentParams& p,
                     std::int64_t unit_items) {
    last = "latent";
    const cudaError_t status = kernel(p, stream);
    if (status != cudaSuccess || !p.cut) return status;
    last = "latent_combine";
    return launch_latent_combine(p, order, schedule.cut.tile_lines, unit_items, stream);
  }
};

/// A call whose lists' pages are decoded first.
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
    status = launches.attend(kernels.wide_staged, PartOrder::wide, staging.rows_of(p, cut));
  }
  if (status != cudaSuccess || !staging.may_overflow) return status;
  p.overflowed = true;
  return launches.attend(kernels.wide, kernels.order, p);
}

}  // namespace

Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream, std::source_location where) {
  const LatentParams p = latent_params(args, {}, schedule);
  const LatentCut& cut = schedule.cut;
  const auto units = static_cast<std::size_t>(cut.units());
  if (auto ok = check_room("schedule.unit_keys", schedule.unit_keys.size(), cut.units()); !ok)
    return ok;
  if (auto ok = check_schedule(schedule); !ok) return ok;
  const cudaError_t status = launch_latent_count(p, cut.keys, schedule.unit_keys.data(), stream);
  if (auto ok = launch_result(status, {"latent_count", fmt::format("{} units", units), where});
      !ok) {
    return ok;
  }
  const auto first = static_cast<std::size_t>(cut.all.units);
  if (auto ok = plan_work({schedule.unit_keys.first(first), {}}, cut.all.work, schedule.list,
                          schedule.work_workspace, stream, where);
      !ok || cut.tail.units == 0) {
    return ok;
  }
  return plan_work({schedule.unit_keys.subspan(first, units - first), {}}, cut.tail.work,
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
  if (cut.units() == 0) return {};
  if (auto ok = check_schedule(schedule); !ok) return ok;
  LatentParams p = latent_params(args, row_request, schedule);
  p.part_out = reinterpret_cast<float*>(workspace.data());
  p.part_lse = p.part_out + cut.parts() * cut.tiles * cut.tile_lines * kLatentValue;
  const auto shape = [&] {
    return fmt::format("{} rows of {} heads, {} keys a unit at most", args.q.rows,
                       args.problem.heads, cut.keys);
  };
  const bool narrow = cut.tile_lines < 64;
  const PartOrder order = fp8 ? PartOrder::turned
                          : narrow && kernels.value().order == PartOrder::wide
                              ? PartOrder::rows
                              : kernels.value().order;
  LatentLaunches launches{schedule, stream};
  const auto of_lines = [&](auto launch) {
    return [launch, &cut](const LatentParams& units, cudaStream_t on) {
      return launch(units, cut.tile_lines, on);
    };
  };
  const cudaError_t status = fp8      ? launches.attend(of_lines(launch_native_mla_fp8), order, p)
                             : narrow ? launches.attend(of_lines(kernels.value().narrow), order, p)
                             : staged
                                 ? attend_staged(kernels.value(), p, launches, workspace.data())
                                 : launches.attend(kernels.value().wide, order, p);
  // The words for an error take as long as half a launch.
  if (status != cudaSuccess) return launch_result(status, {launches.last, shape(), where});
  return {};
}

}  // namespace lathe::cuda
