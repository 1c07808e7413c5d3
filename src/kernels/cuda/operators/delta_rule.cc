#include "kernels/cuda/operators/delta_rule.h"

#include <fmt/format.h>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/sm90/delta/delta.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

template <class T>
const std::int32_t* integers(std::span<const T> list) {
  static_assert(sizeof(T) == sizeof(std::int32_t));
  return reinterpret_cast<const std::int32_t*>(list.data());
}

Result<void> check_widths(const DeltaRuleProblem& p) {
  const auto refuse = [](const char* field, const std::string& wanted, std::int64_t offered) {
    return Error{ErrorCode::unsupported, field, wanted, fmt::format("{}", offered), "--device cpu"};
  };
  static_assert(kDeltaMostKeys == kDeltaWidth);
  static_assert(kDeltaMostHead == kDeltaWidth && kDeltaConvTaps == kDeltaTaps);
  if (p.dk > kDeltaMostKeys) return refuse("dk", fmt::format("at most {}", kDeltaMostKeys), p.dk);
  if (p.dv > kDeltaWidth) return refuse("dv", fmt::format("at most {}", kDeltaWidth), p.dv);
  if (p.conv != kDeltaTaps) return refuse("conv", fmt::format("{} taps", kDeltaTaps), p.conv);
  return {};
}

DeltaParams params_of(const DeltaRule& op) {
  const StepView& step = *op.step;
  const DeltaRuleProblem& p = op.problem;
  return {.heads = p.heads,
          .key_heads = p.key_heads,
          .dk = p.dk,
          .dv = p.dv,
          .per_channel = p.decay == DeltaDecay::per_channel,
          .bounded = p.gate == DeltaGate::bounded,
          .gate_bound = p.gate_bound,
          .sigmoid_out = p.output == DeltaOutput::sigmoid,
          .channels = p.channels(),
          .gate_cols = p.gate_cols(),
          .x = floats(op.x),
          .x_stride = op.x.row_stride,
          .decay = floats(op.decay),
          .decay_stride = op.decay.row_stride,
          .beta = floats(op.beta),
          .beta_stride = op.beta.row_stride,
          .gate = floats(op.gate),
          .gate_stride = op.gate.row_stride,
          .conv = op.conv.data(),
          .a_log = op.a_log.data(),
          .dt_bias = op.dt_bias.data(),
          .norm = op.norm.data(),
          .norm_eps = op.norm_eps,
          .out = reinterpret_cast<bf16*>(op.out.data),
          .out_stride = op.out.row_stride,
          .positions = integers(step.positions),
          .row_request = integers(step.row_request),
          .q_indptr = integers(step.q_indptr),
          .kv_lens = integers(step.kv_lens),
          .state_before = integers(step.state_before),
          .state_table = reinterpret_cast<const std::int32_t*>(step.state_table.data),
          .state_width = step.state_table.width,
          .state_tokens = step.state_tokens,
          .state = reinterpret_cast<float*>(op.state.data),
          .state_stride = op.state.bank_bytes / 4,
          .state_banks = op.state.banks,
          .last_states = last_states(step, op.state),
          .rows = step.rows,
          .requests = step.requests,
          .single = step.phase == Phase::decode};
}

// The arrays of delta_scratch_bytes().
void take_scratch(const DeltaRuleProblem& problem, Arena& tensors, DeltaParams& p) {
  static_assert(kDeltaChunk == kDeltaChunkRows);
  p.chunks = p.rows / kDeltaChunk + 2 * p.requests;
  const std::int64_t rows = p.chunks * problem.heads * kDeltaChunk;
  p.mixed = tensors.take_array<bf16>(p.rows * p.channels);
  p.w = tensors.take_array<bf16>(rows * (problem.dk + 8));
  p.u = tensors.take_array<bf16>(rows * (problem.dv + 32));
  p.scores = tensors.take_array<bf16>(rows * (kDeltaChunk + 8));
  const std::int64_t key_rows = p.chunks * problem.key_heads * kDeltaChunk;
  p.q = tensors.take_array<bf16>(key_rows * (problem.dk + 8));
  p.k = tensors.take_array<bf16>(key_rows * (problem.dk + 8));
  if (p.per_channel) {
    p.last_fades = tensors.take_array<float>(p.chunks * problem.heads * problem.dk);
  } else {
    p.row_fades = tensors.take_array<float>(2 * rows);
  }
}

bool in_chunks(const DeltaRule& op) {
  const StepView& step = *op.step;
  return op.problem.dk == kDeltaWidth && op.problem.dv == kDeltaWidth &&
         step.phase == Phase::extend && step.max_rows > kDeltaSequentialRows &&
         step.state_tokens % kDeltaChunk == 0;
}

}  // namespace

Result<void> delta_rule(const DeltaRule& op, Arena& tensors, cudaStream_t stream) {
  if (auto ok = check_widths(op.problem); !ok) return ok;
  const Arena::Scope scope(tensors);
  DeltaParams p = params_of(op);
  cudaError_t status = cudaSuccess;
  const auto launch = [&](cudaError_t (*kernel)(const DeltaParams&, cudaStream_t)) {
    if (status == cudaSuccess) status = kernel(p, stream);
  };
  if (decodes_in_one_launch(p)) {
    launch(launch_delta_decode);
  } else if (in_chunks(op)) {
    take_scratch(op.problem, tensors, p);
    launch(launch_delta_mix);
    launch(launch_delta_chunks);
    launch(launch_delta_scan);
    launch(launch_delta_finish);
  } else {
    launch(launch_delta_rows);
    launch(launch_delta_finish);
  }
  return launch_result(status, {"delta_rule", fmt::format("{} rows of {} heads", p.rows, p.heads),
                                std::source_location::current()});
}

}  // namespace lathe::cuda
