// Slices of GEMMs in f32, per SIMD target. Few rows stream the stored weights; many rows use panels
// of widened weights.
#include "kernels/cpu/matmul/matmul_slice.h"

#include <cstring>

#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul/matmul_slice.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/matmul/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

HWY_INLINE std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

template <class W>
HWY_INLINE typename W::At weights_of(const WeightView& w, std::int64_t out) {
  return W::at(w) + out * w.cols;
}

HWY_INLINE const float* x_row(const Product& p, std::int64_t r) {
  return reinterpret_cast<const float*>(p.x.row(r));
}

// The scales of the blocks from (out, k) on, or null.
template <class W>
HWY_INLINE const float* scales_of(const WeightView& w, std::int64_t out, std::int64_t k) {
  if (!W::kScaled || w.scales == nullptr || w.scale_rows) return nullptr;
  const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
  return w.scales + out / kWeightBlock * across + k / kWeightBlock;
}

// Stores the sums of outputs out .. out + outs, at most a register tile's.
HWY_INLINE void finish(const Product& p, std::int64_t row, std::int64_t out, std::int64_t outs,
                       const float* sums) {
  const hn::CappedTag<float, kPanelOuts> d;
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  float* to = reinterpret_cast<float*>(p.out.row(row)) + out;
  const float* bias = p.bias == nullptr ? nullptr : p.bias + out;
  if (has_factors(p.w)) {
    for (std::int64_t i = 0; i < outs; ++i) {
      float y = sums[i] * factor_of(p.w, out + i);
      if (bias != nullptr) y += bias[i];
      to[i] = p.add ? to[i] + y : y;
    }
    return;
  }
  if (outs == kPanelOuts) {
    for (std::int64_t i = 0; i < kPanelOuts; i += kLanes) {
      auto y = hn::LoadU(d, sums + i);
      if (bias != nullptr) y = hn::Add(y, hn::LoadU(d, bias + i));
      hn::StoreU(p.add ? hn::Add(hn::LoadU(d, to + i), y) : y, d, to + i);
    }
    return;
  }
  for (std::int64_t i = 0; i < outs; ++i) {
    const float y = bias == nullptr ? sums[i] : sums[i] + bias[i];
    to[i] = p.add ? to[i] + y : y;
  }
}

// Divides `n` rows of x into groups of up to `most` rows, as evenly as possible.
struct Groups {
  std::int64_t rows, groups;
  HWY_INLINE Groups(std::int64_t n, std::int64_t most) : rows(n), groups((n + most - 1) / most) {}
  HWY_INLINE std::int64_t first(std::int64_t g) const { return rows * g / groups; }
};

// Writes eight vectors of x in the order of a step of 4-bit weights: elements j, j + 8, ... go to
// vector j. Vectors are `stride` floats apart.
HWY_INLINE void pack_step(const float* from, std::int64_t stride, float* to) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t j = 0; j < 8; ++j) to[j * stride] = from[j];
#else
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  WeightVec a[4], b[4];
  hn::LoadInterleaved4(d, from, a[0], a[1], a[2], a[3]);
  hn::LoadInterleaved4(d, from + 4 * lanes, b[0], b[1], b[2], b[3]);
  LATHE_UNROLL for (int j = 0; j < 4; ++j) {
    hn::StoreU(hn::ConcatEven(d, b[j], a[j]), d, to + j * stride);
    hn::StoreU(hn::ConcatOdd(d, b[j], a[j]), d, to + (j + 4) * stride);
  }
#endif
}

// Packs elements k .. k + depth of the rows, interleaved vector by vector within a group and
// zero-padded, so that a tile reads one stream.
template <class W>
HWY_INLINE void pack_rows(const MatmulSlice& s, const Groups& groups, std::int64_t k,
                          std::int64_t depth, float* to) {
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t steps = steps_of<W>(depth);
  const std::int64_t ahead = 2 * s.product->x.row_stride;
  for (std::int64_t g = 0; g < groups.groups; ++g) {
    const std::int64_t first = groups.first(g);
    const std::int64_t rows = groups.first(g + 1) - first;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* from = x_row(*s.product, s.row + first + r) + k;
      float* at = to + first * steps * lanes + r * lanes;
      std::int64_t i = 0;
      if constexpr (W::kVectors > 1) {
        for (; i + W::kStep <= depth; i += W::kStep) {
          pack_step(from + i, rows * lanes, at + i * rows);
        }
        if (i < depth) {
          HWY_ALIGN float last[kMxStep] = {};
          std::memcpy(last, from + i, static_cast<std::size_t>(depth - i) * sizeof(float));
          pack_step(last, rows * lanes, at + i * rows);
        }
        continue;
      }
      for (; i + lanes <= depth; i += lanes) {
        __builtin_prefetch(from + i + ahead, 0, 3);
        hn::StoreU(hn::LoadU(d, from + i), d, at + i * rows);
      }
      if (i < depth) {
        HWY_ALIGN float last[16] = {};
        std::memcpy(last, from + i, static_cast<std::size_t>(depth - i) * sizeof(float));
        hn::StoreU(hn::LoadU(d, last), d, at + i * rows);
      }
    }
  }
}

// ---------------------------------------------------------------- few rows

// Weights are read from memory once: to registers, or to the first-level cache if there are several
// groups of rows. K is the inner loop, because memory is read fastest in long streams.
template <class W, int kOuts>
void few_rows(const MatmulSlice& s, float* packed) {
  const Product& p = *s.product;
  const std::int64_t depth = p.w.cols;
  const Groups groups(s.rows, kDirectRows<kOuts>);
  const float* x = packed;  // [K blocks][groups][steps, rows, lanes]
  if (s.rows == 1 && W::kVectors == 1) {
    x = x_row(p, s.row);  // needs no packing
  } else {
    for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
      pack_rows<W>(s, groups, k, least(kDepthBlock, depth - k), packed + k * s.rows);
    }
  }
  for (std::int64_t i = 0; i < s.outs; i += kOuts) {
    const std::int64_t out = s.out + i;
    const std::int64_t outs = least(kOuts, s.outs - i);
    float sums[kFewRows * kOuts] = {};
    for (std::int64_t k = 0; k < depth; k += kDepthBlock) {
      DirectTile<W> t;
      t.weights = weights_of<W>(p.w, out) + k;
      t.weight_stride = depth;
      t.outs = outs;
      t.scales = scales_of<W>(p.w, out, k);
      t.depth = least(kDepthBlock, depth - k);
      const std::int64_t padded =
          steps_of<W>(t.depth) * static_cast<std::int64_t>(hn::Lanes(WeightTag()));
      t.ahead = k + kDepthBlock < depth ? kDepthBlock : kOuts * depth - k;
      for (std::int64_t g = 0; g < groups.groups; ++g) {
        const std::int64_t first = groups.first(g);
        t.prefetch_begin = kOuts * g / groups.groups;
        t.prefetch_end = kOuts * (g + 1) / groups.groups;
        t.x = x + k * s.rows + first * padded;
        t.sums = sums + first * kOuts;
        direct_rows<W, kOuts>(t, groups.first(g + 1) - first);
      }
    }
    for (std::int64_t r = 0; r < s.rows; ++r) finish(p, s.row + r, out, outs, sums + r * kOuts);
  }
}

// ---------------------------------------------------------------- many rows

// Panels are read from memory in order; each is prefetched while the previous one is multiplied.
template <class W>
struct PanelsAhead {
  const MatmulSlice& slice;
  std::int64_t groups;

  // Prefetches a part of the panel at (out, k) before group g of the rows.
  HWY_INLINE void prefetch(std::int64_t out, std::int64_t k, std::int64_t g) const {
    constexpr std::int64_t kLine = W::kLine;
    const WeightView& w = slice.product->w;
    const std::int64_t most = w.rows - out - 1;
    const std::int64_t lines = (least(kDepthBlock, w.cols - k) + kLine - 1) / kLine;
    const typename W::At from = weights_of<W>(w, out) + k;
    for (std::int64_t i = lines * g / groups; i < lines * (g + 1) / groups; ++i) {
      for (std::int64_t r = 0; r < kPanelOuts; ++r) {
        __builtin_prefetch(W::address(from + (least(r, most) * w.cols + i * kLine)), 0, 2);
      }
    }
  }
};

template <class W>
void many_rows(const MatmulSlice& s, float* scratch) {
  const Product& p = *s.product;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  const Groups groups(s.rows, kTileRows);
  const PanelsAhead<W> ahead{s, groups.groups};
  const std::int64_t panels = (s.outs + kPanelOuts - 1) / kPanelOuts;
  const std::int64_t most_steps = steps_of<W>(least(kDepthBlock, p.w.cols));
  float* panel = scratch;                              // [steps, kPanelOuts, lanes]
  float* packed = panel + kPanelOuts * kDepthBlock;    // [groups][steps, rows, lanes]
  float* sums = packed + s.rows * most_steps * lanes;  // [panels, rows, kPanelOuts]
  std::memset(sums, 0, static_cast<std::size_t>(panels * kPanelOuts * s.rows) * sizeof(float));
  for (std::int64_t k = 0; k < p.w.cols; k += kDepthBlock) {
    const std::int64_t depth = least(kDepthBlock, p.w.cols - k);
    const std::int64_t steps = steps_of<W>(depth);
    pack_rows<W>(s, groups, k, depth, packed);
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t out = s.out + i * kPanelOuts;
      const std::int64_t outs = least(kPanelOuts, s.outs - i * kPanelOuts);
      widen_panel<W>(weights_of<W>(p.w, out) + k, p.w.cols, outs, scales_of<W>(p.w, out, k), depth,
                     panel);
      const bool last = i + 1 == panels;
      const std::int64_t next_k = last ? k + kDepthBlock : k;
      const std::int64_t next_out = last ? s.out : out + kPanelOuts;
      for (std::int64_t g = 0; g < groups.groups; ++g) {
        if (next_k < p.w.cols) ahead.prefetch(next_out, next_k, g);
        const std::int64_t first = groups.first(g);
        panel_rows(panel, packed + first * steps * lanes, steps, groups.first(g + 1) - first,
                   sums + (i * s.rows + first) * kPanelOuts);
      }
    }
  }
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t i = 0; i < panels; ++i) {
      finish(p, s.row + r, s.out + i * kPanelOuts, least(kPanelOuts, s.outs - i * kPanelOuts),
             sums + (i * s.rows + r) * kPanelOuts);
    }
  }
}

template <class W>
HWY_INLINE void slice_of(const MatmulSlice& s, float* scratch) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  if (s.rows <= kFewRows && (W::kVectors > 1 || s.product->w.cols % lanes == 0)) {
    if (s.rows <= kTileRows) {
      few_rows<W, kTileOuts>(s, scratch);
    } else {
      few_rows<W, kNarrowOuts>(s, scratch);
    }
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
    case DType::u4:
      return slice_of<U4Weights>(s, scratch);
    case DType::e2m1:
      if (s.product->w.groups.data != nullptr) return slice_of<NvWeights>(s, scratch);
      return slice_of<E2m1Weights>(s, scratch);
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
  const std::int64_t whole = (depth + kMxStep - 1) / kMxStep * kMxStep;
  const std::int64_t block = whole < kDepthBlock ? whole : kDepthBlock;
  const std::int64_t few = rows <= kMostFewRows ? rows * whole : 0;
  const std::int64_t many = kPanelOuts * kDepthBlock + rows * padded + rows * block;
  return few > many ? few : many;
}

void matmul_slice(const MatmulSlice& s, float* scratch) { HWY_DYNAMIC_DISPATCH(slice)(s, scratch); }

}  // namespace lathe
#endif  // HWY_ONCE
