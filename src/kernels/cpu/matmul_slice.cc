#include "kernels/cpu/matmul_slice.h"

#include <cstring>

// Vectors of unknown size cannot be elements of register blocks; Arm has NEON beside them.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_slice.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class W>
HWY_INLINE const typename W::T* weights_of(const WeightView& w, std::int64_t out) {
  return reinterpret_cast<const typename W::T*>(w.data) + out * w.cols;
}

HWY_INLINE const float* x_row(const Product& p, std::int64_t r) {
  return reinterpret_cast<const float*>(p.x.row(r));
}

// The factors of the blocks from (out, k) on, or null.
template <class W>
HWY_INLINE const float* scales_of(const WeightView& w, std::int64_t out, std::int64_t k) {
  if (!W::kScaled || w.scales == nullptr) return nullptr;
  const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
  return w.scales + out / kWeightBlock * across + k / kWeightBlock;
}

// Sums [.., kPanelOuts] of outputs out .. out + outs to their place.
HWY_INLINE void finish(const Product& p, std::int64_t row, std::int64_t out, std::int64_t outs,
                       const float* sums) {
  float* to = reinterpret_cast<float*>(p.out.row(row)) + out;
  for (std::int64_t i = 0; i < outs; ++i) {
    float y = sums[i];
    if (p.bias != nullptr) y += p.bias[out + i];
    to[i] = p.add ? to[i] + y : y;
  }
}

// ---------------------------------------------------------------- few rows

// Weights pass once from memory to registers; the rows of x stay in the cache.
template <class W>
void few_rows(const MatmulSlice& s) {
  const Product& p = *s.product;
  const std::int64_t depth = p.w.cols;
  for (std::int64_t i = 0; i < s.outs; i += kPanelOuts) {
    const std::int64_t out = s.out + i;
    const std::int64_t outs = least(kPanelOuts, s.outs - i);
    float sums[kFewRows * kPanelOuts] = {};
    for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
      DirectTile<W> t;
      t.weights = weights_of<W>(p.w, out) + k;
      t.weight_stride = depth;
      t.outs = outs;
      t.scales = scales_of<W>(p.w, out, k);
      t.x_stride = p.x.row_stride;
      t.depth = least(kDepthBlock, depth - k);
      for (std::int64_t r = 0; r < s.rows;) {
        t.x = x_row(p, s.row + r) + k;
        t.sums = sums + r * kPanelOuts;
        r += direct_rows(t, s.rows - r);
      }
    }
    for (std::int64_t r = 0; r < s.rows; ++r) {
      finish(p, s.row + r, out, outs, sums + r * kPanelOuts);
    }
  }
}

// ---------------------------------------------------------------- many rows

// Rows of x in groups of up to kTileRows, as even as can be.
struct Groups {
  std::int64_t rows, groups;
  explicit Groups(std::int64_t n) : rows(n), groups((n + kTileRows - 1) / kTileRows) {}
  HWY_INLINE std::int64_t first(std::int64_t g) const { return rows * g / groups; }
};

// Rows' elements k .. k + depth interleaved vector by vector inside a group, zeros behind the end:
// a tile then reads one stream.
HWY_INLINE void pack_rows(const MatmulSlice& s, std::int64_t k, std::int64_t depth, float* to) {
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Groups groups(s.rows);
  const std::int64_t steps = (depth + lanes - 1) / lanes;
  for (std::int64_t g = 0; g < groups.groups; ++g) {
    const std::int64_t first = groups.first(g);
    const std::int64_t rows = groups.first(g + 1) - first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = x_row(*s.product, s.row + first + r) + k;
      float* at = to + first * steps * lanes + r * lanes;
      std::int64_t i = 0;
      for (; i + lanes <= depth; i += lanes) hn::StoreU(hn::LoadU(d, from + i), d, at + i * rows);
      if (i < depth) {
        HWY_ALIGN float last[16] = {};
        std::memcpy(last, from + i, static_cast<std::size_t>(depth - i) * sizeof(float));
        hn::StoreU(hn::LoadU(d, last), d, at + i * rows);
      }
    }
  }
}

template <class W>
void many_rows(const MatmulSlice& s, float* scratch) {
  const Product& p = *s.product;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  const Groups groups(s.rows);
  const std::int64_t panels = (s.outs + kPanelOuts - 1) / kPanelOuts;
  float* panel = scratch;                               // [steps, kPanelOuts, lanes]
  float* sums = panel + kPanelOuts * kDepthBlock;       // [panels, rows, kPanelOuts]
  float* packed = sums + panels * kPanelOuts * s.rows;  // [groups][steps, rows, lanes]
  std::memset(sums, 0, static_cast<std::size_t>(panels * kPanelOuts * s.rows) * sizeof(float));
  for (std::int64_t k = 0; k < p.w.cols; k += kDepthBlock) {
    const std::int64_t depth = least(kDepthBlock, p.w.cols - k);
    const std::int64_t steps = (depth + lanes - 1) / lanes;
    pack_rows(s, k, depth, packed);
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t out = s.out + i * kPanelOuts;
      const std::int64_t outs = least(kPanelOuts, s.outs - i * kPanelOuts);
      widen_panel<W>(weights_of<W>(p.w, out) + k, p.w.cols, outs, scales_of<W>(p.w, out, k), depth,
                     panel);
      for (std::int64_t g = 0; g < groups.groups; ++g) {
        const std::int64_t first = groups.first(g);
        panel_rows(panel, packed + first * steps * lanes, steps, groups.first(g + 1) - first,
                   sums + (i * s.rows + first) * kPanelOuts);
      }
    }
  }
  for (std::int64_t i = 0; i < panels; ++i) {
    const std::int64_t outs = least(kPanelOuts, s.outs - i * kPanelOuts);
    for (std::int64_t r = 0; r < s.rows; ++r) {
      finish(p, s.row + r, s.out + i * kPanelOuts, outs, sums + (i * s.rows + r) * kPanelOuts);
    }
  }
}

template <class W>
HWY_INLINE void slice_of(const MatmulSlice& s, float* scratch) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  if (s.rows <= kFewRows && s.product->w.cols % lanes == 0) {
    few_rows<W>(s);
  } else {
    many_rows<W>(s, scratch);
  }
}

void slice(const MatmulSlice& s, float* scratch) {
  switch (s.product->w.dtype) {
    case DType::f32:
      return slice_of<F32Weights>(s, scratch);
    case DType::bf16:
      return slice_of<Bf16Weights>(s, scratch);
    case DType::f16:
      return slice_of<F16Weights>(s, scratch);
    default:
      return slice_of<E4m3Weights>(s, scratch);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(slice);

std::int64_t matmul_slice_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth) {
  const std::int64_t padded = (outs + kPanelOuts - 1) / kPanelOuts * kPanelOuts;
  const std::int64_t steps = (depth < kDepthBlock ? depth + 15 : kDepthBlock) / 16;
  return kPanelOuts * kDepthBlock + rows * padded + rows * steps * 16;
}

void matmul_slice(const MatmulSlice& s, float* scratch) { HWY_DYNAMIC_DISPATCH(slice)(s, scratch); }

}  // namespace lathe
#endif  // HWY_ONCE
