#include "kernels/cuda/sm90/matmul/few/few_call.h"

#include "base/integers.h"
#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

// 16 bytes more than the columns, so that ldmatrix reads eight tokens without bank conflicts.
std::int64_t token_bytes(const WeightView& w) {
  return 2 * round_up(w.cols, kFewColumns * kFewDepth) + 16;
}
// Most bytes of a row's scales and zeros in a chunk (FewTile::kRowBytes).
int scale_bytes(const WeightView& w) {
  if (is_mxfp4(w)) return 4;
  return may_have_zeros(w) ? 8 + kMatmulPackedZero : 8;
}

// Whether the weights fit.
bool takes(const WeightView& w) {
  return is_packed(w) && w.rows % kFewRows == 0 && w.cols >= kFewLeastColumns &&
         few_warps(scale_bytes(w), token_bytes(w)) > 0;
}

// Of a launch with tiles of kFewTokens tokens.
FewParams few_params(const MatmulLaunch& l, const RowsView& x, const WeightView& w) {
  FewParams f{};
  f.matmul = l.params;
  MatmulParams& p = f.matmul;
  p.tile_rows = kFewRows;
  p.tiles = static_cast<std::int32_t>(ceil_div(p.weights[0].rows, kFewRows));
  f.codes = static_cast<const std::uint8_t*>(l.weights[0].base);
  f.row_bytes = bytes_of(w.dtype, w.cols);
  f.four_rows = (p.gate_step == 2 ? 8 : 4) * f.row_bytes;
  f.eight_rows = p.gate_step == 0   ? 8 * f.row_bytes
                 : p.gate_step == 1 ? l.weights[0].turn_stride
                                    : f.row_bytes;
  f.scale_step = std::int64_t{p.weights[0].packed_rows} * p.scale_bytes;
  f.x = reinterpret_cast<const std::uint16_t*>(x.data);
  f.x_stride = x.row_stride;
  f.x_row = static_cast<std::int32_t>(token_bytes(w));
  f.warps = few_warps(scale_bytes(w), f.x_row);
  f.x_slots = few_slots(scale_bytes(w), f.warps, f.x_row);
  return f;
}

cudaError_t launch(const WeightView& w, const FewParams& f, int sms, cudaStream_t stream) {
  if (is_mxfp4(w)) return launch_few_mxfp4(f, sms, stream);
  if (w.dtype == DType::e2m1) return launch_few_nvfp4(f, sms, stream);
  if (w.groups.dtype == DType::f16) return launch_few_u4_half(f, sms, stream);
  if (w.groups.zeros != nullptr) return launch_few_u4_zeros(f, sms, stream);
  return launch_few_u4(f, sms, stream);
}

}  // namespace

bool few_takes(const GroupedMatmulCall& c) {
  if (c.offsets == nullptr || c.x.rows > kFewMean * c.groups || !takes(c.w)) return false;
  // wgmma converts int4 fast enough for the experts of one token, if its rows are long.
  const bool one_token = c.x.rows <= kFewTokens;
  const bool is_long = few_slots(kMatmulPackedScale, kFewWarps, token_bytes(c.w)) == 0;
  return c.w.dtype != DType::u4 || !one_token || !is_long;
}

bool few_takes(std::span<const MatmulCall> calls, int split) {
  return calls.size() == 1 && split == 1 && calls[0].x.rows <= kFewTokens && takes(calls[0].w);
}

FewParams make_few_params(const GroupedMatmulCall& c, int sms) {
  FewParams f = few_params(make_launch(c, kFewTokens, sms), c.x, c.w);
  f.group_bytes = bytes_of(c.w.dtype, c.weight_stride);
  return f;
}

FewParams make_few_params(const MatmulCall& c, int sms) {
  FewParams f =
      few_params(make_launch({&c, 1}, {1, kMatmulTileRows, kFewTokens, false}, sms), c.x, c.w);
  f.matmul.groups = 1;
  return f;
}

cudaError_t launch_few(const GroupedMatmulCall& c, int sms, cudaStream_t stream) {
  return launch(c.w, make_few_params(c, sms), sms, stream);
}

cudaError_t launch_few(const MatmulCall& c, int sms, cudaStream_t stream) {
  return launch(c.w, make_few_params(c, sms), sms, stream);
}

}  // namespace lathe::cuda
