#include "kernels/cuda/sm90/gqa/gqa_attend.h"

#include <fmt/format.h>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"
#include "kernels/cuda/sm90/gqa/gqa_shared.h"
#include "step/schedule.h"

namespace lathe::cuda {
namespace {

Result<void> launch_schedule(const GqaParams& p, const AttendArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  return call_result(launch_gqa_schedule(p, stream), "gqa_schedule");
}

Result<void> launch_attention(const GqaParams& p, const AttendArgs& args) {
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  const GqaForm form = gqa_form(args.problem);
  const bool fp8 = args.main.pool->layout.kind() == LayoutKind::gqa_fp8;
  return call_result(form.latent ? launch_gqa_rows(p, form.value_dim, stream)
                                 : launch_gqa(p, form.key_dim, fp8, stream),
                     "gqa_swap_ab");
}

// The same for a call with prefixes.
Result<void> attend_shared(const AttendArgs& args, const GqaSharedShape& shape, std::byte* memory) {
  const std::byte* made = args.schedule != nullptr ? args.schedule->device() : nullptr;
  const GqaJoin p =
      gqa_shared_params(args, shape, made != nullptr ? const_cast<std::byte*>(made) : memory,
                        memory + shape.schedule_bytes);
  if (made == nullptr) {
    if (auto ok = launch_schedule(p.groups, args); !ok) return ok;
    if (auto ok = launch_schedule(p.requests, args); !ok) return ok;
  }
  if (auto ok = launch_attention(p.groups, args); !ok) return ok;
  if (auto ok = launch_attention(p.requests, args); !ok) return ok;
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  return call_result(launch_gqa_join(p, stream), "gqa_join");
}

// memory: on the device, of the size that shape says; the schedule comes first.
Result<void> attend_gqa(const AttendArgs& args, const GqaShape& shape, std::byte* memory,
                        CallPart part) {
  // The cast is safe: kernels only read a schedule that the step's layers share.
  const std::byte* made = args.schedule != nullptr ? args.schedule->device() : nullptr;
  const GqaParams p =
      gqa_params(args, shape, made != nullptr ? const_cast<std::byte*>(made) : memory,
                 memory + shape.schedule_bytes);
  if (made == nullptr && part != CallPart::attention) {
    if (auto ok = launch_schedule(p, args); !ok) return ok;
  }
  if (part == CallPart::schedule) return {};
  if (auto ok = launch_attention(p, args); !ok) return ok;
  const auto stream = static_cast<cudaStream_t>(args.execution.stream);
  return call_result(launch_gqa_combine(p, gqa_form(args.problem).value_dim, stream),
                     "gqa_combine");
}

}  // namespace

Result<void> prepare_gqa_on_device(const AttendArgs& args, Schedule& out) {
  const auto sms = count_sms();
  if (!sms) return sms.error();
  if (!args.prefixes.empty()) {
    const GqaSharedShape shape = gqa_shared_shape(args, *sms);
    std::byte* memory = out.take_device(shape.schedule_bytes);
    if (memory == nullptr) return no_scratch(shape.schedule_bytes);
    const GqaJoin p = gqa_shared_params(args, shape, memory, nullptr);
    if (auto ok = launch_schedule(p.groups, args); !ok) return ok;
    return launch_schedule(p.requests, args);
  }
  const GqaShape shape = gqa_shape(args, *sms);
  std::byte* memory = out.take_device(shape.schedule_bytes);
  if (memory == nullptr) return no_scratch(shape.schedule_bytes);
  return launch_schedule(gqa_params(args, shape, memory, nullptr), args);
}

Result<std::int64_t> gqa_workspace(const AttendArgs& args) {
  const auto sms = count_sms();
  if (!sms) return sms.error();
  return gqa_workspace_bytes(args, *sms);
}

Result<void> attend_gqa_on_device(const AttendArgs& args) {
  if (auto ok = check_gqa_call(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  Scratch* scratch = args.execution.scratch;
  if (scratch == nullptr || !(scratch->memory() == kDeviceMemory)) {
    return Error{ErrorCode::invalid_argument, "execution.scratch", "scratch of device memory",
                 scratch == nullptr ? "none" : "scratch of the host", ""};
  }
  const auto sms = count_sms();
  if (!sms) return sms.error();
  if (!args.prefixes.empty()) {
    const GqaSharedShape shape = gqa_shared_shape(args, *sms);
    std::byte* memory = scratch->take(shape.bytes());
    if (memory == nullptr) return no_scratch(shape.bytes());
    return attend_shared(args, shape, memory);
  }
  const GqaShape shape = gqa_shape(args, *sms);
  std::byte* memory = scratch->take(shape.bytes());
  if (memory == nullptr) return no_scratch(shape.bytes());
  return attend_gqa(args, shape, memory, CallPart::both);
}

Result<void> attend_gqa_in(const AttendArgs& args, std::span<std::byte> workspace, CallPart part) {
  if (auto ok = check_gqa_call(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  const auto sms = count_sms();
  if (!sms) return sms.error();
  const GqaShape shape = gqa_shape(args, *sms);
  if (std::ssize(workspace) < shape.bytes()) {
    return Error{ErrorCode::invalid_argument, "workspace", fmt::format("{} bytes", shape.bytes()),
                 fmt::format("{}", workspace.size()), ""};
  }
  return attend_gqa(args, shape, workspace.data(), part);
}

}  // namespace lathe::cuda
