// Launches one pass after another. A pass lists its keys and work and gathers latents. Then, for
// one set of heads after another, it multiplies the latents by kv_b and attends.
#include "kernels/cuda/sm90/ragged/ragged_attend.h"

#include <algorithm>

#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/sm90/codec/codec.h"
#include "kernels/cuda/sm90/gqa/gqa_kernels.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"
#include "kernels/cuda/sm90/ragged/ragged_call.h"
#include "kernels/cuda/sm90/ragged/ragged_kernels.h"
#include "step/schedule.h"

namespace lathe::cuda {
namespace {

cudaStream_t stream_of(const AttendArgs& args) {
  return static_cast<cudaStream_t>(args.execution.stream);
}

Result<void> launch_list(const RaggedParams& p, const AttendArgs& args) {
  if (auto ok = call_result(launch_gqa_schedule(p.gqa, stream_of(args)), "gqa_schedule"); !ok) {
    return ok;
  }
  return call_result(launch_ragged_bases(p, stream_of(args)), "ragged_bases");
}

/// Gathers the latents of the pass as bf16.
Result<void> gather(const RaggedParams& p, const AttendArgs& args) {
  if (auto ok = call_result(launch_ragged_slots(p, stream_of(args)), "ragged_slots"); !ok) {
    return ok;
  }
  const MutableRowsView latents{reinterpret_cast<std::byte*>(p.latents), DType::bf16, p.keys,
                                p.latent_width, p.latent_width};
  const std::span slots(reinterpret_cast<const Slot*>(p.slots), static_cast<std::size_t>(p.keys));
  return gather_decode(*args.main.pool, slots, latents,
                       {args.main.key_scale, args.main.value_scale}, stream_of(args));
}

/// Expands keys and values of the heads beginning with `head`.
Result<void> expand(const RaggedParams& p, const AttendArgs& args, std::int32_t head) {
  const Expansion& e = args.expansion;
  const std::int64_t nope = args.problem.nope, first = std::int64_t{head} * p.head_width;
  const std::int64_t rows = std::int64_t{p.gqa.kv_heads} * p.head_width;
  WeightView w{e.kv_b + bytes_of(e.kv_b_dtype, first * nope), e.kv_b_dtype, rows, nope};
  if (e.kv_b_scales != nullptr) {
    w.scales = e.kv_b_scales + first / kWeightBlock * ((nope + kWeightBlock - 1) / kWeightBlock);
  }
  const RowsView x{reinterpret_cast<const std::byte*>(p.latents), DType::bf16, p.keys, nope,
                   p.latent_width};
  const MutableRowsView out{reinterpret_cast<std::byte*>(p.expanded), DType::bf16, p.keys, rows,
                            rows};
  // As one group, so that the GEMM covers the keys that the device counts, and not the capacity.
  const GroupedMatmulCall call{.x = x, .w = w, .out = out, .groups = 1, .offsets = p.extent};
  if (grouped_matmul_takes(call)) return grouped_matmul_on_device(call, stream_of(args));
  return call_result(
      launch_plain_gemm(
          PlainGemm{
              .x = device_rows(x), .w = plain_weight(w), .out = device_rows(out), .rows = p.keys},
          stream_of(args)),
      "plain_gemm");
}

cudaError_t launch_m128(const RaggedParams& p, const AttentionProblem& problem,
                        cudaStream_t stream) {
  const bool wide_keys = problem.qk_nope_head > 128, wide_values = problem.v_head > 128;
  if (wide_keys) {
    return wide_values ? launch_ragged_m128<256, 256>(p, stream)
                       : launch_ragged_m128<256, 128>(p, stream);
  }
  return wide_values ? launch_ragged_m128<192, 256>(p, stream)
                     : launch_ragged_m128<192, 128>(p, stream);
}

}  // namespace

Result<void> prepare_ragged_on_device(const AttendArgs& args, Schedule& out) {
  const auto sms = count_sms();
  if (!sms) return sms.error();
  const auto shape = ragged_shape(args, *sms);
  if (!shape) return shape.error();
  if (!shape->shares_list(args)) return {};
  std::byte* list = out.take_device(shape->list_bytes);
  if (list == nullptr) return no_scratch(shape->list_bytes);
  return launch_list(ragged_params(args, *shape, 0, list, nullptr), args);
}

Result<void> attend_ragged_as_cut(const AttendArgs& args, const RaggedShape& shape) {
  std::byte* memory = args.execution.scratch->take(shape.bytes());
  if (memory == nullptr) return no_scratch(shape.bytes());
  // The cast is safe: kernels only read a list that the step's layers share.
  const bool shared = args.schedule != nullptr && shape.shares_list(args);
  std::byte* list = shared ? const_cast<std::byte*>(args.schedule->device()) : memory;
  const std::int64_t requests = std::ssize(args.kv_lens);
  for (std::int64_t r = 0; r < requests; r += shape.requests) {
    const AttendArgs a = requests_at(args, r, std::min(shape.requests, requests - r));
    const auto params = [&](std::int32_t head) {
      return ragged_params(a, shape, head, list, memory + shape.list_bytes);
    };
    const RaggedParams first = params(0);
    if (!shared) {
      if (auto ok = launch_list(first, a); !ok) return ok;
    }
    if (auto ok = gather(first, a); !ok) return ok;
    for (std::int32_t head = 0; head < args.problem.heads; head += shape.heads) {
      const RaggedParams p = params(head);
      if (auto ok = expand(p, a, head); !ok) return ok;
      const auto attended = launch_m128(p, args.problem, stream_of(args));
      if (auto ok = call_result(attended, "ragged_m128"); !ok) return ok;
      const auto combined = launch_gqa_combine(p.gqa, args.problem.v_head, stream_of(args));
      if (auto ok = call_result(combined, "gqa_combine"); !ok) return ok;
    }
  }
  return {};
}

Result<void> attend_ragged_on_device(const AttendArgs& args) {
  if (auto ok = check_ragged_call(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  const Scratch* scratch = args.execution.scratch;
  if (scratch == nullptr || !(scratch->memory() == kDeviceMemory)) {
    return Error{ErrorCode::invalid_argument, "execution.scratch", "scratch of device memory",
                 scratch == nullptr ? "none" : "scratch of the host", ""};
  }
  const auto sms = count_sms();
  if (!sms) return sms.error();
  const auto shape = ragged_shape(args, *sms);
  if (!shape) return shape.error();
  return attend_ragged_as_cut(args, *shape);
}

}  // namespace lathe::cuda
