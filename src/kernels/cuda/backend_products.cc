// GEMMs: dense ones, those of heads and of experts.
#include <array>
#include <utility>

#include "base/rows.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operators/expert_calls.h"
#include "kernels/cuda/operators/expert_layer.h"
#include "kernels/cuda/sm90/matmul/pack/permute_columns.h"
#include "kernels/cuda/sm90/matmul/plain/narrow_gemm.h"
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

GroupedMatmulCall head_products(const HeadProducts& op) {
  const WeightStack& w = *op.w;
  const PlainWeight strides = plain_weight(w);
  return {.x = cols_at(op.x, 0, w.cols),
          .w = w.at(0),
          .out = cols_at(op.out, 0, w.rows),
          .groups = w.count(),
          .weight_stride = strides.data_stride * 8 / bits_of(w.dtype),
          .scale_stride = strides.scales_stride,
          .x_stride = op.x_stride,
          .out_stride = op.out_stride};
}

bool same_rows(const RowsView& a, const RowsView& b) {
  return a.data == b.data && a.rows == b.rows && a.cols == b.cols && a.row_stride == b.row_stride;
}

bool same_x_and_type(const MatmulCall& a, const MatmulCall& b) {
  return same_rows(a.x, b.x) && a.x.dtype == b.x.dtype && a.x_scales == b.x_scales &&
         same_format(a.w, b.w);
}

// An f32 weight with so few outputs that the plain GEMM would compute all of them in one block.
bool is_narrow(const Product& p) {
  return p.w.dtype == DType::f32 && p.x.dtype == DType::f32 && p.out.dtype == DType::f32 &&
         p.w.rows <= kNarrowOutputs && p.w.cols % 4 == 0 && p.x.row_stride % 4 == 0 &&
         p.bias == nullptr && !p.add;
}

}  // namespace

// Neighbouring products with the same x and weight type share one launch, unless they are alone,
// and the split of K is chosen for all their rows together. An operator passes the same list in
// every step, so its bits do not change. For weights in GPTQ's act order x is permuted first.
void CudaBackend::matmul(const OpsContext& ops, std::span<const Product> products) {
  const Arena::Scope scope(*ops.tensors);
  RowsView quantized;  // the x that `codes` were quantized from
  MutableRowsView permuted;
  QuantizedX codes;
  std::array<MatmulCall, kMatmulCalls> calls;
  std::size_t count = 0;  // calls collected for the next launch
  const auto multiply_all = [&] { multiply(std::span(calls).first(std::exchange(count, 0))); };
  for (const Product& p : products) {
    MatmulCall call{p.x, p.w, p.out, p.bias, p.add};
    call.w.columns = nullptr;
    const bool empty = p.x.rows == 0 || p.w.cols == 0;  // a rank may have nothing of a width
    if (is_narrow(p) || plain_products_ || empty || !matmul_takes(call)) {
      multiply_all();
      multiply_plain(ops, p);
      continue;
    }
    if (p.w.columns != nullptr) {
      multiply_all();  // the previous product may read the same buffer
      if (permuted.cols != p.x.cols)
        permuted = alloc_rows(*ops.tensors, p.x.rows, p.x.cols, DType::bf16);
      permute(p, permuted);
      call.x = constant(permuted);
    }
    if (takes_codes(ops.precision, p.x, p.w)) {
      if (!same_rows(quantized, p.x)) codes = quantize(ops, p.x);
      quantized = p.x;
      set_codes(codes, call);
    }
    const bool full = count == kMatmulCalls || (count > 0 && !same_x_and_type(calls[0], call));
    if (full || p.alone) multiply_all();
    calls[count++] = call;
    if (p.alone) multiply_all();
  }
  multiply_all();
}

bool CudaBackend::gated_matmul(const OpsContext& ops, const GatedProduct& op) {
  MatmulCall call{
      .x = op.x, .w = op.gate, .out = op.out, .activation = &op.activation, .up = op.up};
  if (plain_products_ || op.x.rows == 0 || !matmul_takes(call)) return false;
  const Arena::Scope scope(*ops.tensors);
  if (takes_codes(ops.precision, op.x, op.gate)) set_codes(quantize(ops, op.x), call);
  multiply(std::span(&call, 1));
  return true;
}

void CudaBackend::head_matmul(const OpsContext& ops, const HeadProducts& op) {
  const Arena::Scope scope(*ops.tensors);
  const GroupedMatmulCall call = head_products(narrowed(ops, op));
  if (!plain_products_ && op.x.rows > 0 && grouped_matmul_takes(call)) {
    keep(flush());
    keep(grouped_matmul_on_device(call, stream_));
    return;
  }
  put("head_gemm", op.out, launch_plain_gemm,
      PlainGemm{.x = device_rows(op.x),
                .w = plain_weight(*op.w),
                .out = device_rows(op.out),
                .rows = op.x.rows,
                .count = op.w->count(),
                .x_stride = op.x_stride,
                .out_stride = op.out_stride});
}

void CudaBackend::expert_layer(const OpsContext& ops, const ExpertLayer& op) {
  keep(flush());
  CombineExperts sum;
  keep(cuda::expert_layer(op, ops.precision, plain_products_, *ops.tensors, stream_, &sum));
  if (sum.rows > 0) held_.hold(sum);
}

bool CudaBackend::expert_layer_with_shared(const OpsContext& ops, const ExpertLayer& op,
                                           const SharedExperts& shared) {
  if (plain_products_ || !takes_shared(op, shared, ops.precision)) return false;
  keep(flush());
  CombineExperts sum;
  keep(cuda::expert_layer(op, ops.precision, false, *ops.tensors, stream_, &sum, &shared));
  if (sum.rows > 0) held_.hold(sum);
  return true;
}

void CudaBackend::multiply(std::span<MatmulCall> calls) {
  if (calls.empty()) return;
  keep(flush());
  const std::int64_t kept = matmul_kept_bytes(device_.sms);
  if (scratch_.size() >= kept) {
    calls[0].kept = reinterpret_cast<float*>(scratch_.take(kept));
    if (arrivals_) calls[0].arrivals = arrivals_->data();
  }
  keep(matmul_on_device(calls, stream_));
}

void CudaBackend::multiply_plain(const OpsContext& ops, const Product& p) {
  if (is_narrow(p)) return multiply_narrow(ops, p);
  put("plain_gemm", p.out, launch_plain_gemm,
      PlainGemm{.x = device_rows(p.x),
                .w = plain_weight(p.w),
                .out = device_rows(p.out),
                .rows = p.x.rows,
                .bias = p.bias,
                .add = p.add});
}

// Writes x with its columns in the order of a weight's.
void CudaBackend::permute(const Product& p, const MutableRowsView& out) {
  put("permute_columns", p.x, launch_permute_columns,
      PermuteColumns{.x = reinterpret_cast<const std::uint16_t*>(p.x.data),
                     .columns = p.w.columns,
                     .out = reinterpret_cast<std::uint16_t*>(out.data),
                     .rows = p.x.rows,
                     .cols = p.x.cols,
                     .x_stride = p.x.row_stride,
                     .out_stride = out.row_stride});
}

QuantizedX CudaBackend::quantize(const OpsContext& ops, const RowsView& x) {
  keep(start_queued());
  const bool power_of_two = ops.precision == MatmulPrecision::fp8_pow2;
  const auto joined = held_.launch_with_codes(x, power_of_two, stream_);
  if (!joined) keep(joined.error());
  if (joined && *joined) return **joined;
  keep(held_.launch(stream_));
  auto codes = cuda::quantize(x, ops.precision, *ops.tensors, stream_);
  if (!codes) keep(codes.error());
  return codes ? *codes : QuantizedX{};
}

void CudaBackend::multiply_narrow(const OpsContext& ops, const Product& p) {
  const Arena::Scope scope(*ops.tensors);
  NarrowGemm narrow{.x = floats(p.x),
                    .w = reinterpret_cast<const float*>(p.w.data),
                    .out = floats(p.out),
                    .x_stride = p.x.row_stride,
                    .out_stride = p.out.row_stride,
                    .rows = p.x.rows,
                    .cols = p.w.cols,
                    .outputs = static_cast<std::int32_t>(p.w.rows)};
  narrow.parts = ops.tensors->take_array<float>(narrow_parts(narrow));
  keep(start_queued());
  keep(held_.hold_sum(narrow, stream_));
}

// Casts x to bf16, which the tensor core GEMMs read.
HeadProducts CudaBackend::narrowed(const OpsContext& ops, HeadProducts op) {
  const WeightStack& w = *op.w;
  if (plain_products_ || op.x.dtype == DType::bf16 || op.x.rows == 0) return op;
  const MutableRowsView x = alloc_rows(*ops.tensors, op.x.rows, w.count() * w.cols, DType::bf16);
  cast_rows(ops, {.x = cols_at(op.x, 0, w.cols),
                  .out = cols_at(x, 0, w.cols),
                  .heads = w.count(),
                  .x_head = op.x_stride,
                  .out_head = w.cols});
  op.x = constant(x);
  op.x_stride = w.cols;
  return op;
}

}  // namespace lathe::cuda
