// Register tiles of a GEMM: a few rows of x times kPanelOuts rows of a weight, either stored or
// widened to a panel. Included once per SIMD target (Highway), so it calls nothing from the
// standard library (see layout/codec/codec_fast-inl.h).
#include <cstddef>
#include <cstdint>

#if defined(LATHE_KERNELS_CPU_MATMUL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATHE_KERNELS_CPU_MATMUL_TILE_INL_H_
#undef LATHE_KERNELS_CPU_MATMUL_TILE_INL_H_
#else
#define LATHE_KERNELS_CPU_MATMUL_TILE_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/common/unroll.h"
#include "kernels/cpu/matmul/matmul_slice.h"
#include "kernels/cpu/matmul/stream_level.h"
#include "kernels/cpu/matmul/weight_load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {

using V = WeightVec;

// Outputs of a register tile. With three rows, 24 of 32 registers (or 12 of 16) are accumulators.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kTileOuts = 8;
inline constexpr int kNarrowRows = 6;
#else
inline constexpr int kTileOuts = 4;
inline constexpr int kNarrowRows = 3;
#endif
// The other tile shape, for stored weights: with fewer outputs and more rows, each weight is
// widened less often.
inline constexpr int kNarrowOuts = 4;
inline constexpr std::int64_t kTileRows = 3;
static_assert(kPanelOuts % kTileOuts == 0);

inline constexpr std::int64_t kFewRows = kMostFewRows;

// Without this GCC folds a load into every use: each weight is loaded once per row of x, and a tile
// waits for loads instead of FMAs.
HWY_INLINE void keep_in_register(V& v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  asm("" : "+v"(v.raw));
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  asm("" : "+x"(v.raw));
#else
  (void)v;
#endif
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void add_sums4(const V* x, float* to) {
  for (int i = 0; i < 4; ++i) to[i] += hn::GetLane(x[i]);
}
#else
template <class D4>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4> > sum_of_blocks(D4, hn::VFromD<D4> x) {
  if constexpr (hn::MaxLanes(D4()) == 4) {
    return x;
  } else {
    const hn::Half<D4> dh;
    return sum_of_blocks(dh, hn::Add(hn::LowerHalf(dh, x), hn::UpperHalf(dh, x)));
  }
}

// Adds the lane sums of four vectors x to four floats. Two rounds of interleaving leave the sums of
// each block of four lanes in its lanes, then the blocks are added.
HWY_INLINE void add_sums4(const V* x, float* to) {
  const WeightTag d;
  const hn::RepartitionToWide<hn::RebindToUnsigned<WeightTag> > dw;
  const V ab = hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1]));
  const V cd = hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3]));
  const auto ab2 = hn::BitCast(dw, ab);
  const auto cd2 = hn::BitCast(dw, cd);
  const V low = hn::BitCast(d, hn::InterleaveLower(dw, ab2, cd2));
  const V high = hn::BitCast(d, hn::InterleaveUpper(dw, ab2, cd2));
  const hn::FixedTag<float, 4> d4;
  hn::StoreU(hn::Add(hn::LoadU(d4, to), sum_of_blocks(d, hn::Add(low, high))), d4, to);
}
#endif

// Vectors for `depth` elements of K, rounded up to whole steps of the format.
template <class W>
HWY_INLINE std::int64_t steps_of(std::int64_t depth) {
  const std::int64_t step = W::kVectors * static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  return (depth + step - 1) / step * W::kVectors;
}

// ---------------------------------------------------------------- from the stored weight

template <class W>
struct DirectTile {
  typename W::At weights;  // [outs, depth] at weight_stride
  std::int64_t weight_stride;
  std::int64_t outs;    // outputs of the tile that exist, at least 1
  const float* scales;  // the blocks' scales along depth; null: 1
  const float* x;       // [steps_of(depth), rows, lanes]
  std::int64_t depth;  // up to kDepthBlock; a multiple of the vectors' lanes, or whole MXFP4 blocks
  std::int64_t ahead;  // distance from a weight to the next tile's weight in its place
  std::int64_t prefetch_begin, prefetch_end;  // the tile prefetches the next weights of these
  float* sums;                                // [rows, kOuts]; added to
};

template <class W, int kOuts, int kRows>
HWY_NOINLINE void direct_tile(const DirectTile<W>& t) {
  const WeightTag d;
  constexpr auto kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  constexpr std::int64_t kLine = W::kLine;
  // Two vectors at a time if there are enough registers: they share a part of the widening.
  constexpr bool kPairs =
      W::kPairs && kLine % (2 * kLanes) == 0 && kRows * kOuts + 2 * kRows + 5 <= 32;
  V acc[kRows][kOuts];
  typename W::At w[kOuts];
  LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
    // Missing rows of the weight repeat its last row, and their sums are not read.
    w[i] = t.weights + (i < t.outs ? i : t.outs - 1) * t.weight_stride;
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = hn::Zero(d);
  }
  const float* HWY_RESTRICT in = t.x;
  const std::int64_t ahead = t.ahead;
  const bool whole = t.prefetch_end - t.prefetch_begin == kOuts;
  const bool to_first_level = W::kChoosesLevel && streams_through_first_level();
  // always_inline, because GCC drops calls of a function that only prefetches.
  const auto prefetch = [&](std::int64_t k) HWY_ATTR __attribute__((always_inline)) {
    if (whole && to_first_level) {
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        __builtin_prefetch(W::address(w[i] + (k + ahead)), 0, 3);
      }
    } else if (whole) {
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        __builtin_prefetch(W::address(w[i] + (k + ahead)), 0, 2);
      }
    } else {
      for (std::int64_t i = t.prefetch_begin; i < t.prefetch_end; ++i) {
        __builtin_prefetch(W::address(t.weights + (i * t.weight_stride + k + ahead)), 0, 3);
      }
    }
  };
  if constexpr (W::kVectors > 1) {
    const auto add = [&](int i, const auto& weights) HWY_ATTR {
      LATHE_UNROLL for (int j = 0; j < W::kVectors; ++j) {
        V wide = weights.vector(j);
        if (kRows > 1) keep_in_register(wide);
        LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
          acc[r][i] = hn::MulAdd(wide, hn::LoadU(d, in + (j * kRows + r) * kLanes), acc[r][i]);
        }
      }
    };
    std::int64_t k = 0;
    for (; k + W::kStep <= t.depth; k += W::kStep) {
      if (k % kLine == 0) prefetch(k);
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) add(i, W::load(w[i] + k));
      in += W::kVectors * kRows * kLanes;
    }
    if (k < t.depth) {
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) add(i, W::load(w[i] + k, t.depth - k));
    }
  } else {
    const auto multiply = [&](int i, V wide, const V* x) HWY_ATTR {
      if (kRows > 1) keep_in_register(wide);
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = hn::MulAdd(wide, x[r], acc[r][i]);
    };
    const auto step = [&](std::int64_t k, V scale) HWY_ATTR {
      V x[kRows];
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) x[r] = hn::LoadU(d, in + r * kLanes);
      in += kRows * kLanes;
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) multiply(i, W::load(w[i] + k, scale), x);
    };
    const auto pair_step = [&](std::int64_t k, V scale) HWY_ATTR {
      V x[2 * kRows];
      LATHE_UNROLL for (int r = 0; r < 2 * kRows; ++r) x[r] = hn::LoadU(d, in + r * kLanes);
      in += 2 * kRows * kLanes;
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        V low, high;
        load_pair<W>(w[i] + k, scale, low, high);
        multiply(i, low, x);
        multiply(i, high, x + kRows);
      }
    };
    for (std::int64_t begin = 0; begin < t.depth; begin += kWeightBlock) {
      const std::int64_t end = begin + kWeightBlock < t.depth ? begin + kWeightBlock : t.depth;
      const V scale =
          hn::Set(d, W::kFold * (t.scales != nullptr ? t.scales[begin / kWeightBlock] : 1.0f));
      std::int64_t k = begin;
      for (; k + kLine <= end; k += kLine) {
        prefetch(k);
        if constexpr (kPairs) {
          LATHE_UNROLL for (std::int64_t j = 0; j < kLine; j += 2 * kLanes) pair_step(k + j, scale);
        } else {
          LATHE_UNROLL for (std::int64_t j = 0; j < kLine; j += kLanes) step(k + j, scale);
        }
      }
      for (; k < end; k += kLanes) step(k, scale);
    }
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kOuts; i += 4) add_sums4(acc[r] + i, t.sums + r * kOuts + i);
  }
}

// Most rows of a tile of kOuts outputs.
template <int kOuts>
inline constexpr std::int64_t kDirectRows = kOuts == kNarrowOuts ? kNarrowRows : kTileRows;

template <class W, int kOuts>
HWY_INLINE void direct_rows(const DirectTile<W>& t, std::int64_t rows) {
  constexpr auto kMost = static_cast<int>(kDirectRows<kOuts>);
  switch (rows) {
    case 1:
      return direct_tile<W, kOuts, 1>(t);
    case 2:
      return direct_tile<W, kOuts, 2>(t);
    case 3:
      return direct_tile<W, kOuts, 3>(t);
    case 4:
      return direct_tile < W, kOuts, kMost < 4 ? 1 : 4 > (t);
    case 5:
      return direct_tile < W, kOuts, kMost < 5 ? 1 : 5 > (t);
    default:
      return direct_tile < W, kOuts, kMost < 6 ? 1 : 6 > (t);
  }
}

// ---------------------------------------------------------------- from a widened panel

// Widens weights [outs, depth], rows `stride` apart, to a panel [steps, kPanelOuts, lanes], with
// zeros after the end of depth. Panel rows beyond `outs` keep old data: their sums are not read.
template <class W>
HWY_NOINLINE void widen_panel(typename W::At weights, std::int64_t stride, std::int64_t outs,
                              const float* scales, std::int64_t depth, float* panel) {
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  if constexpr (W::kVectors > 1) {
    for (std::int64_t i = 0; i < outs; ++i) {
      const typename W::At w = weights + i * stride;
      for (std::int64_t k = 0; k < depth; k += W::kStep) {
        const auto step = k + W::kStep <= depth ? W::load(w + k) : W::load(w + k, depth - k);
        float* to = panel + i * lanes + k * kPanelOuts;
        LATHE_UNROLL for (int j = 0; j < W::kVectors; ++j) {
          hn::StoreU(step.vector(j), d, to + j * lanes * kPanelOuts);
        }
      }
    }
    return;
  } else {
    for (std::int64_t begin = 0; begin < depth; begin += kWeightBlock) {
      const std::int64_t end = begin + kWeightBlock < depth ? begin + kWeightBlock : depth;
      const V scale =
          hn::Set(d, W::kFold * (scales != nullptr ? scales[begin / kWeightBlock] : 1.0f));
      for (std::int64_t i = 0; i < outs; ++i) {
        const typename W::T* w = weights + i * stride;
        float* to = panel + i * lanes;
        std::int64_t k = begin;
        for (; k + 2 * lanes <= end; k += 2 * lanes) {
          V low, high;
          load_pair<W>(w + k, scale, low, high);
          hn::StoreU(low, d, to + k * kPanelOuts);
          hn::StoreU(high, d, to + (k + lanes) * kPanelOuts);
        }
        for (; k + lanes <= end; k += lanes) {
          hn::StoreU(W::load(w + k, scale), d, to + k * kPanelOuts);
        }
        if (k < end) {
          typename W::T last[16] = {};
          for (std::int64_t j = 0; k + j < end; ++j) last[j] = w[k + j];
          hn::StoreU(W::load(last, scale), d, to + k * kPanelOuts);
        }
      }
    }
  }
}

template <int kRows>
HWY_NOINLINE void panel_tile(const float* HWY_RESTRICT panel, const float* HWY_RESTRICT x,
                             std::int64_t steps, float* HWY_RESTRICT sums) {
  const WeightTag d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  V acc[kRows][kTileOuts];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kTileOuts; ++i) acc[r][i] = hn::Zero(d);
  }
  for (std::int64_t s = 0; s < steps; ++s) {
    V in[kRows];
    LATHE_UNROLL for (int r = 0; r < kRows; ++r) in[r] = hn::LoadU(d, x + r * lanes);
    LATHE_UNROLL for (int i = 0; i < kTileOuts; ++i) {
      V w = hn::LoadU(d, panel + i * lanes);
      keep_in_register(w);
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = hn::MulAdd(w, in[r], acc[r][i]);
    }
    panel += kPanelOuts * lanes;
    x += kRows * lanes;
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kTileOuts; i += 4) {
      add_sums4(acc[r] + i, sums + r * kPanelOuts + i);
    }
  }
}

HWY_INLINE void panel_rows(const float* panel, const float* x, std::int64_t steps,
                           std::int64_t rows, float* sums) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(WeightTag()));
  for (int out = 0; out < kPanelOuts; out += kTileOuts) {
    if (rows == 3) {
      panel_tile<3>(panel + out * lanes, x, steps, sums + out);
    } else if (rows == 2) {
      panel_tile<2>(panel + out * lanes, x, steps, sums + out);
    } else {
      panel_tile<1>(panel + out * lanes, x, steps, sums + out);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#endif  // LATHE_KERNELS_CPU_MATMUL_TILE_INL_H_
