// Which GEMMs the kernels support.
#include <cstdint>

#include "kernels/cuda/sm90/matmul/matmul_call.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {
namespace {

// Packed scales are copied in 16-byte words.
bool packed_fits(const WeightView& w) {
  const GroupScales& g = w.groups;
  const bool scales = w.dtype == DType::u4 ? g.dtype == DType::bf16 || g.dtype == DType::f16
                      : is_mxfp4(w)
                          ? g.size == kMxBlock
                          : g.dtype == DType::e4m3 && g.size == kNvBlock && w.scales != nullptr;
  const bool sizes = w.dtype != DType::u4 || g.size == 32 || g.size == 64 || g.size == 128;
  return scales && sizes && w.cols % kPackedColumns == 0 && w.cols % g.size == 0 &&
         at_multiple(g.data, 16) && at_multiple(g.zeros, 16);
}

// Whether activation(gate, up) is supported, given that matmul_takes() accepts the rest of the
// call. `up` without data: `gate` has the rows of both, interleaved.
bool gate_fits(const WeightView& gate, const WeightView& up, const MutableRowsView& out) {
  const bool turns = up.data == nullptr;
  const std::int64_t n = turns ? gate.rows / 2 : gate.rows;
  const bool fits = out.dtype == DType::bf16 && out.cols == n && n % 8 == 0;
  if (turns) return fits && gate.rows % 2 == 0;
  const bool scales = (up.scales == nullptr) == (gate.scales == nullptr) &&
                      up.scale_rows == gate.scale_rows && (!is_packed(up) || packed_fits(up)) &&
                      up.columns == nullptr;
  return fits && scales && same_format(up, gate) && up.rows == n && up.cols == gate.cols &&
         at_multiple(up.data, 16);
}

bool same_terms(const Activation& a, const Activation& b) {
  return a.kind == b.kind && a.alpha == b.alpha && a.limit == b.limit;
}

// Whether c.dense, if there is one, can be in the launch.
bool dense_fits(const GroupedMatmulCall& c) {
  if (c.dense == nullptr) return true;
  const MatmulCall& b = c.dense->call;
  const bool gated = c.activation != nullptr;
  if (c.offsets == nullptr || is_packed(c.w) || !matmul_takes(b) || !same_format(b.w, c.w) ||
      b.x.dtype != c.x.dtype || b.bias != nullptr || b.add || (b.activation != nullptr) != gated) {
    return false;
  }
  const bool out = gated ? c.up.data != nullptr && same_terms(*b.activation, *c.activation)
                         : b.out.dtype == DType::f32;
  return out && b.x.rows > 0 && b.x.rows <= kDenseTokens && b.w.rows > 0 &&
         grouped_tile_tokens(c) <= 32;
}

}  // namespace

bool same_format(const WeightView& a, const WeightView& b) {
  return a.dtype == b.dtype && is_packed(a) == is_packed(b) && a.groups.size == b.groups.size &&
         (!is_packed(a) || a.groups.dtype == b.groups.dtype) &&
         (a.groups.zeros == nullptr) == (b.groups.zeros == nullptr);
}

bool matmul_takes(const MatmulCall& c) {
  if (c.w.columns != nullptr) return false;
  const bool weights =
      c.w.dtype == DType::bf16 || c.w.dtype == DType::e4m3 || (is_packed(c.w) && packed_fits(c.w));
  const bool codes = c.x.dtype == DType::e4m3 && c.w.dtype == DType::e4m3 &&
                     c.x_scales != nullptr && at_multiple(c.x_scales, 16) &&
                     c.x_scale_stride % 4 == 0 && c.x_scale_stride >= c.x.rows &&
                     c.x_scale_stride <= INT32_MAX / 2;
  const bool dtypes = (codes || (c.x.dtype == DType::bf16 && weights && c.x_scales == nullptr)) &&
                      (c.out.dtype == DType::f32 || (c.out.dtype == DType::bf16 && !c.add));
  const bool shapes = c.x.cols == c.w.cols && c.out.cols == c.w.rows && c.out.rows == c.x.rows &&
                      c.w.cols > 0 && c.x.rows <= INT32_MAX / 2 && c.w.rows <= INT32_MAX / 2 &&
                      c.w.cols <= INT32_MAX / 2;
  const bool gated =
      c.activation == nullptr || (!c.add && c.up.data != nullptr && gate_fits(c.w, c.up, c.out));
  if (!dtypes || !shapes || !gated) return false;
  const bool boxes = at_multiple(c.x.data, 16) && c.x.row_stride * bits_of(c.x.dtype) % 128 == 0 &&
                     at_multiple(c.w.data, 16) && c.w.cols * bits_of(c.w.dtype) % 128 == 0;
  const bool out = at_multiple(c.out.data, 4) &&
                   (c.out.dtype == DType::f32 || (c.out.row_stride % 2 == 0 && c.w.rows % 2 == 0));
  return boxes && out;
}

bool grouped_matmul_takes(const GroupedMatmulCall& c) {
  const bool heads = c.offsets == nullptr;
  const auto whole_rows = [](DType t, std::int64_t elements) {
    return elements * bits_of(t) % 128 == 0;
  };
  const bool fits =
      c.activation == nullptr ? c.out.cols == c.w.rows : !heads && gate_fits(c.w, c.up, c.out);
  if (!fits || (heads && c.x_scales != nullptr) || !dense_fits(c)) return false;
  return matmul_takes(first_group(c)) && c.groups <= kMatmulGroups &&
         whole_rows(c.w.dtype, c.weight_stride) && (!heads || whole_rows(c.x.dtype, c.x_stride)) &&
         (c.out.dtype == DType::f32 || c.out_stride % 2 == 0);
}

}  // namespace lathe::cuda
