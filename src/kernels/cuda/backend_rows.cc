// Operators on rows: norms, activations, copies and hyper-connections.
#include "base/rows.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/operators/hyper_params.h"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

void CudaBackend::embed(const OpsContext&, const Embed& op) {
  put("embed", op.out, launch_embed,
      EmbedParams{.table = op.table.data,
                  .dtype = op.table.dtype,
                  .tokens = op.tokens.data(),
                  .out = device_rows(op.out),
                  .rows = op.out.rows,
                  .cols = op.out.cols,
                  .first = op.first,
                  .vocab = op.table.rows,
                  .scale = op.scale});
}

void CudaBackend::gather_rows(const OpsContext&, const RowsView& x,
                              std::span<const std::int32_t> rows, const MutableRowsView& out) {
  put("gather_rows", out, launch_gather_rows,
      GatherRowsParams{device_rows(x), rows.data(), device_rows(out), out.rows, out.cols});
}

void CudaBackend::rms_norm(const OpsContext& ops, const RmsNorm& op) {
  const NormParams p{.x = device_rows(op.x),
                     .weight = op.weight.data(),
                     .out = device_rows(op.out),
                     .rows = op.x.rows,
                     .cols = op.x.cols / op.heads,
                     .heads = op.heads,
                     .eps = op.eps,
                     .add = op.add};
  if (rounds_to_e4m3(ops.precision, DType::e4m3)) {
    keep(start_queued());
    return keep(held_.hold_norm(op, p, stream_));
  }
  const auto joined = held_.launch_with(op, stream_);
  if (!joined) return keep(joined.error());
  if (!*joined) put("rms_norm", op.out, launch_norm, p);
}

void CudaBackend::layer_norm(const OpsContext&, const LayerNorm& op) {
  put("layer_norm", op.out, launch_norm,
      NormParams{.x = device_rows(op.x),
                 .weight = op.weight.data(),
                 .bias = op.bias.data(),
                 .out = device_rows(op.out),
                 .rows = op.x.rows,
                 .cols = op.x.cols,
                 .eps = op.eps});
}

void CudaBackend::gated_activation(const OpsContext&, const GatedActivation& op) {
  ActivationParams p{.activation = activation_terms(op.activation),
                     .gate = device_rows(op.gate),
                     .out = device_rows(op.out),
                     .rows = op.out.rows,
                     .cols = op.out.cols};
  if (op.up.cols > 0) p.up = device_rows(op.up);
  put("gated_activation", op.out, launch_gated_activation, p);
}

void CudaBackend::gate_rows(const OpsContext&, const GateRows& op) {
  put("gate_rows", op.x, launch_gate_rows,
      GateRowsParams{.x = device_rows(op.x),
                     .gate = device_rows(op.gate),
                     .rows = op.x.rows,
                     .cols = op.x.cols / op.heads,
                     .heads = op.heads,
                     .gate_head = op.gate_head,
                     .one = op.gate.cols == 1});
}

void CudaBackend::add_rows(const OpsContext&, const RowsView& x, const MutableRowsView& out) {
  put("add_rows", out, launch_copy_rows,
      CopyRowsParams{.x = device_rows(x),
                     .out = device_rows(out),
                     .rows = x.rows,
                     .cols = x.cols,
                     .add = true});
}

void CudaBackend::scale_rows(const OpsContext&, const ScaleRows& op) {
  put("scale_rows", op.rows, launch_scale_rows,
      ScaleRowsParams{.x = reinterpret_cast<float*>(op.rows.data),
                      .stride = op.rows.row_stride,
                      .factor = op.factor.empty() ? nullptr : op.factor.data(),
                      .times = op.times,
                      .limit = op.limit,
                      .rows = op.rows.rows,
                      .cols = op.rows.cols});
}

void CudaBackend::cast_rows(const OpsContext&, const CastRows& op) {
  put("cast_rows", op.out, launch_copy_rows,
      CopyRowsParams{.x = device_rows(op.x),
                     .out = device_rows(op.out),
                     .rows = op.x.rows,
                     .cols = op.x.cols,
                     .heads = op.heads,
                     .x_head = op.x_head,
                     .out_head = op.out_head});
}

void CudaBackend::find_non_finite(const OpsContext&, const FindNonFinite& op) {
  put("find_non_finite", op.x, launch_find_non_finite,
      NonFiniteParams{device_rows(op.x), op.rows.empty() ? nullptr : op.rows.data(),
                      op.first.data(), op.x.rows, op.x.cols, op.layer});
}

void CudaBackend::hyper_mix(const OpsContext&, const HyperMix& op) {
  HyperMixParams p = mix_params(op);
  p.mix = floats(op.mix);
  p.mix_stride = op.mix.row_stride;
  p.iterations = op.iterations;
  p.post_scale = op.post_scale;
  p.post_eps = op.post_eps;
  keep(start_queued());
  keep(held_.hold_mix(p, stream_));
}

void CudaBackend::hyper_add(const OpsContext&, const HyperAdd& op) {
  check_streams(op.streams, constant(op.x), op.y);
  keep(flush());
  held_.hold(HyperAddParams{.y = floats(op.y),
                            .mix = floats(op.mix),
                            .x = floats(op.x),
                            .y_stride = op.y.row_stride,
                            .mix_stride = op.mix.row_stride,
                            .x_stride = op.x.row_stride,
                            .rows = op.y.rows,
                            .n = op.y.cols,
                            .combs = op.mix.cols > op.streams});
}

void CudaBackend::hyper_head(const OpsContext&, const HyperHead& op) {
  put("hyper_head", op.out, launch_hyper_mix, mix_params(op));
}

}  // namespace lathe::cuda
