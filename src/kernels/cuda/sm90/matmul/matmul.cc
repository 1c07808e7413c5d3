#include "kernels/cuda/sm90/matmul/matmul.h"

#include <fmt/format.h>

#include <string>

#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/sm90/matmul/deep/deep_kernels.h"
#include "kernels/cuda/sm90/matmul/few/few_call.h"
#include "kernels/cuda/sm90/matmul/few/few_codes_call.h"
#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

using LaunchMatmul = cudaError_t (*)(const MatmulParams&, const MatmulMaps&, const MatmulInstance&,
                                     cudaStream_t);

// The launches of a format of packed weights: of tiles of up to 128 rows, and with deep stages.
struct PackedLaunches {
  LaunchMatmul tile, deep;
};
PackedLaunches packed_launches(const WeightView& w) {
  if (is_mxfp4(w)) return {launch_matmul_mxfp4, launch_deep_mxfp4};
  if (w.dtype == DType::e2m1) return {launch_matmul_nvfp4, launch_deep_nvfp4};
  if (w.groups.dtype == DType::f16) return {launch_matmul_u4_half, launch_deep_u4_half};
  if (w.groups.zeros != nullptr) return {launch_matmul_u4_zeros, launch_deep_u4_zeros};
  return {launch_matmul_u4, launch_deep_u4};
}

LaunchMatmul launch_of(const WeightView& w, const MatmulParams& p, const MatmulInstance& instance) {
  if (p.x_scales != nullptr) return launch_matmul_e4m3;
  if (w.dtype == DType::bf16) return launch_matmul_bf16;
  if (w.dtype == DType::e4m3) return launch_matmul_e4m3_weights;
  const PackedLaunches packed = packed_launches(w);
  return instance.warpgroups == 2 ? packed.tile : packed.deep;
}

bool same_x(const RowsView& a, const RowsView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols &&
         a.row_stride == b.row_stride;
}

Result<void> check_calls(std::span<const MatmulCall> calls) {
  if (calls.size() > kMatmulCalls) {
    return Error{ErrorCode::out_of_range, "calls", fmt::format("up to {} a launch", kMatmulCalls),
                 std::to_string(calls.size()), "launch the rest on their own"};
  }
  for (const MatmulCall& c : calls) {
    if (c.activation != nullptr && calls.size() > 1) {
      return Error{ErrorCode::invalid_argument, "calls", "a gated call alone",
                   fmt::format("{} calls", calls.size()), "launch it on its own"};
    }
    if (!matmul_takes(c)) {
      return Error{ErrorCode::unsupported, "product",
                   "bf16 x, weights of bf16, e4m3, e2m1 or u4, rows at multiples of 16 bytes",
                   fmt::format("{} x {} at a stride of {}, weights {}", c.x.rows, c.x.cols,
                               c.x.row_stride, name(c.w.dtype)),
                   "ask matmul_takes() first"};
    }
    if (!same_x(c.x, calls[0].x) || c.x_scales != calls[0].x_scales ||
        c.x_scale_stride != calls[0].x_scale_stride || !same_format(c.w, calls[0].w)) {
      return Error{ErrorCode::invalid_argument, "calls", "the same x and format of weights in all",
                   "others", "launch them on their own"};
    }
  }
  return {};
}

Result<void> put(const MatmulLaunch& l, const WeightView& weights, cudaStream_t stream) {
  if (l.instance.clusters == 0) return {};
  MatmulMaps maps{};
  cudaError_t status = make_row_map(maps.x, l.x);
  if (l.params.tail_tokens > 0 && status == cudaSuccess) {
    status = make_row_map(maps.x_tail, l.x_tail);
  }
  if (l.params.dense.items > 0 && status == cudaSuccess) {
    status = make_row_map(maps.x_dense, l.x_dense);
    if (status == cudaSuccess) {
      status = make_row_map(maps.weights[kDenseWeight], l.weights[kDenseWeight]);
    }
  }
  for (int i = 0; i < l.params.weight_count && status == cudaSuccess; ++i) {
    status = make_row_map(maps.weights[i], l.weights[i]);
    const MatmulWeight& w = l.params.weights[i];
    if (w.staged != 0 && status == cudaSuccess) {
      status = make_row_map(maps.out[i], l.out[i]);
    }
  }
  if (status != cudaSuccess) return call_result(status, "cuTensorMapEncodeTiled");
  const LaunchMatmul launch = launch_of(weights, l.params, l.instance);
  return call_result(launch(l.params, maps, l.instance, stream), "matmul");
}

}  // namespace

std::int64_t matmul_kept_bytes(int sms) { return 4 * kMatmulKeptFloats * sms; }

Result<void> matmul_with_tiling(std::span<const MatmulCall> calls, const MatmulTiling& tiling,
                                int sms, cudaStream_t stream) {
  return put(make_launch(calls, tiling, sms), calls[0].w, stream);
}

Result<void> matmul_on_device(std::span<const MatmulCall> calls, cudaStream_t stream) {
  if (calls.empty()) return {};
  if (auto ok = check_calls(calls); !ok) return ok;
  if (calls[0].x.rows == 0) return {};
  const auto sms = count_sms();
  if (!sms) return sms.error();
  const MatmulTiling tiling = choose_tiling(shape_of(calls, *sms));
  if (tiling.warpgroups == 2 && few_takes(calls, tiling.split)) {
    return call_result(launch_few(calls[0], *sms, stream), "matmul");
  }
  const bool is_long = calls[0].w.cols >= kFewCodesLeastColumns;
  if (const auto few = make_few_codes(calls, tiling.split, *sms); is_long && few) {
    return call_result(launch_few_codes(few->params, few->instance, stream), "matmul");
  }
  return matmul_with_tiling(calls, tiling, *sms, stream);
}

Result<int> matmul_parts(std::span<const MatmulCall> calls) {
  const auto sms = count_sms();
  if (!sms) return sms.error();
  return choose_tiling(shape_of(calls, *sms)).split;
}

Result<void> grouped_matmul_on_device(const GroupedMatmulCall& c, cudaStream_t stream) {
  if (!grouped_matmul_takes(c)) {
    return Error{ErrorCode::unsupported, "grouped product",
                 fmt::format("up to {} groups of bf16 x and weights of bf16, e4m3, e2m1 or u4, "
                             "rows and groups at multiples of 16 bytes",
                             kMatmulGroups),
                 fmt::format("{} groups, {} x {}, weights {}", c.groups, c.x.rows, c.x.cols,
                             name(c.w.dtype)),
                 "ask grouped_matmul_takes() first"};
  }
  if (c.groups == 0 || c.x.rows == 0 || c.w.rows == 0) return {};
  const auto sms = count_sms();
  if (!sms) return sms.error();
  if (few_takes(c)) return call_result(launch_few(c, *sms, stream), "matmul");
  return put(make_launch(c, grouped_tile_tokens(c), *sms), c.w, stream);
}

}  // namespace lathe::cuda
