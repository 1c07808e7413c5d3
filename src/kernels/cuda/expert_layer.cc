// Runs a layer of experts on the GPU: routes rows, places them by expert, multiplies and sums.
#include "kernels/cuda/expert_layer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rows.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/sm90/moe/moe.h"
#include "kernels/cuda/sm90/product/plain_product.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {
namespace {

// Rows that go through the experts in one pass, to bound what they make.
constexpr std::int64_t kPassRows = 1024;

class Pass {
 public:
  Pass(const ExpertLayer& op, Arena& tensors, cudaStream_t stream)
      : op_(op), tensors_(tensors), stream_(stream) {}

  void run(const RowsView& x, const MutableRowsView& out) {
    const Arena::Scope scope(tensors_);
    const Router& r = op_.choice;
    const std::int64_t choices = x.rows * r.top_k;
    const MutableRowsView logits = alloc_rows(tensors_, x.rows, r.experts);
    put(launch_plain_product, PlainProduct{.x = device_rows(x),
                                           .w = plain_weight(op_.router),
                                           .out = device_rows(logits),
                                           .rows = x.rows,
                                           .bias = data_or_null(op_.router_bias)});
    auto* ids = tensors_.take_array<std::int32_t>(choices);
    auto* weights = tensors_.take_array<float>(choices);
    put(launch_route, RouteParams{.logits = reinterpret_cast<const float*>(logits.data),
                                  .bias = data_or_null(r.bias),
                                  .ids = ids,
                                  .weights = weights,
                                  .rows = x.rows,
                                  .logits_stride = logits.row_stride,
                                  .experts = r.experts,
                                  .top_k = r.top_k,
                                  .groups = r.groups,
                                  .top_groups = r.top_groups,
                                  .scoring = r.scoring,
                                  .normalize = r.normalize,
                                  .scale = r.scale});
    auto* offsets = tensors_.take_array<std::int32_t>(r.experts + 1);
    auto* places = tensors_.take_array<std::int32_t>(choices);
    auto* rows = tensors_.take_array<std::int32_t>(choices);
    put(launch_place, PlaceParams{ids, choices, r.experts, r.top_k, offsets, places, rows});

    const ExpertStacks& e = *op_.experts;
    const std::int64_t ffn = e.down.cols;
    PlainProduct product{.x = device_rows(x),
                         .rows = x.rows,
                         .count = r.experts,
                         .offsets = offsets,
                         .x_rows = rows};
    const MutableRowsView gate = alloc_rows(tensors_, choices, e.gate.rows);
    product.w = plain_weight(e.gate);
    product.out = device_rows(gate);
    product.bias = data_or_null(e.gate_bias);
    product.bias_stride = e.gate.rows;
    put(launch_plain_product, product);
    ActivationParams activation{.activation = op_.activation,
                                .gate = device_rows(constant(gate)),
                                .out = device_rows(gate),
                                .rows = choices,
                                .cols = ffn};
    if (e.up.count() > 0) {
      const MutableRowsView up = alloc_rows(tensors_, choices, ffn);
      product.w = plain_weight(e.up);
      product.out = device_rows(up);
      product.bias = nullptr;
      put(launch_plain_product, product);
      activation.up = device_rows(constant(up));
    }
    put(launch_gated_activation, activation);

    const MutableRowsView made = alloc_rows(tensors_, choices, x.cols);
    put(launch_plain_product, PlainProduct{.x = device_rows(constant(gate)),
                                           .w = plain_weight(e.down),
                                           .out = device_rows(made),
                                           .rows = x.rows,
                                           .bias = data_or_null(e.down_bias),
                                           .bias_stride = e.down.rows,
                                           .count = r.experts,
                                           .offsets = offsets});
    put(launch_combine_experts, CombineExperts{.made = device_rows(constant(made)),
                                               .weights = weights,
                                               .places = places,
                                               .out = device_rows(out),
                                               .rows = out.rows,
                                               .cols = out.cols,
                                               .top_k = r.top_k});
  }
  cudaError_t status() const { return status_; }

 private:
  static const float* data_or_null(std::span<const float> v) {
    return v.empty() ? nullptr : v.data();
  }
  template <class Params>
  void put(cudaError_t (*launch)(const Params&, cudaStream_t), const Params& p) {
    if (status_ == cudaSuccess) status_ = launch(p, stream_);
  }

  const ExpertLayer& op_;
  Arena& tensors_;
  cudaStream_t stream_;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace

Result<void> expert_layer(const ExpertLayer& op, Arena& tensors, cudaStream_t stream) {
  if (op.choice.experts > kMostExperts) {
    return Error{ErrorCode::unsupported, "experts", fmt::format("at most {}", kMostExperts),
                 fmt::format("{}", op.choice.experts), "--device cpu"};
  }
  Pass pass(op, tensors, stream);
  for (std::int64_t first = 0; first < op.x.rows; first += kPassRows) {
    const std::int64_t rows = std::min(kPassRows, op.x.rows - first);
    pass.run(rows_at(op.x, first, rows), rows_at(op.out, first, rows));
  }
  return launch_result(pass.status(), {"expert_layer",
                                       fmt::format("{} rows of {}, {} experts", op.x.rows,
                                                   op.x.cols, op.choice.experts),
                                       std::source_location::current()});
}

}  // namespace lathe::cuda
