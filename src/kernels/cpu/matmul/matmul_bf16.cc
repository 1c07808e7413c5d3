// Slices of GEMMs by bf16 pairs: register tiles for few rows, panels for many.
#include "kernels/cpu/matmul/matmul_bf16.h"

#include <type_traits>

#include "base/check.h"
#include "kernels/cpu/common/dot_targets.h"
#include "kernels/cpu/common/unroll.h"
#include "kernels/cpu/matmul/stream_level.h"

namespace lathe {
namespace {

constexpr std::int64_t kSomeRows =
    30;  // up to this many rows a panel multiplies all rows at once (measured)

}  // namespace

std::int64_t matmul_slice_bf16_scratch(std::int64_t rows, std::int64_t outs, std::int64_t depth) {
  const std::int64_t padded_outs = (outs + kPanelOuts - 1) / kPanelOuts * kPanelOuts;
  const std::int64_t padded = (depth + kMxStep - 1) / kMxStep * kMxStep;
  const std::int64_t block = padded < kDepthBlock ? padded : kDepthBlock;
  const std::int64_t few = rows <= kMostFewRows ? rows * padded / 2 : 0;
  if (rows <= kSomeRows) {
    const std::int64_t some = (kPanelOuts + rows) * block / 2 + rows * padded_outs;
    return few > some ? few : some;
  }
  const std::int64_t kept = depth > kDepthBlock ? rows * padded_outs : 0;
  return (padded_outs + kPairTileRows) * block / 2 + kept;
}

#ifndef LATHE_BF16_DOT

bool cpu_has_bf16_dot() { return false; }
void matmul_slice_bf16(const MatmulSlice&, float*) { LATHE_CHECK(false, "not on this CPU"); }
double bf16_dot_loop(std::int64_t, float*) { return 0; }

#else

bool cpu_has_bf16_dot() {
  return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
}

}  // namespace lathe

LATHE_TARGET_BEGIN(LATHE_BF16_DOT)
#include "kernels/cpu/matmul/bf16_codes-inl.h"

namespace lathe {
namespace {

// ---------------------------------------------------------------- rows of x as bf16

LATHE_INLINE const float* x_row(const Product& p, std::int64_t r) {
  return reinterpret_cast<const float*>(p.x.row(r));
}

// The scales of the weight block of output `out`, from k on; or null.
LATHE_INLINE const float* scales_of(const WeightView& w, std::int64_t out, std::int64_t k) {
  if (w.scales == nullptr || has_factors(w)) return nullptr;
  const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
  return w.scales + out / kWeightBlock * across + k / kWeightBlock;
}

struct Groups {
  std::int64_t rows, groups;
  LATHE_INLINE Groups(std::int64_t n, std::int64_t most) : rows(n), groups((n + most - 1) / most) {}
  LATHE_INLINE std::int64_t first(std::int64_t g) const { return rows * g / groups; }
};

// Packs elements k .. k + depth of a group's rows as bf16, interleaved vector by vector and
// zero-padded to a whole step.
template <class W>
void pack_group(const MatmulSlice& s, std::int64_t first, std::int64_t rows, std::int64_t k,
                std::int64_t depth, const float* scales, std::uint16_t* to) {
  const std::int64_t padded = (depth + W::kStep - 1) / W::kStep * W::kStep;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from = x_row(*s.product, s.row + first + r) + k;
    std::uint16_t* at = to + r * kPairLanes;
    for (std::int64_t i = 0; i < padded; i += W::kStep) {
      const __m512 scale = _mm512_set1_ps(scales == nullptr ? 1.0f : scales[i / kWeightBlock]);
      __m512i x[W::kVectors];
      LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
        const std::int64_t j = i + v * kPairLanes;
        __m512 a, b;
        if (j + kPairLanes <= depth) {
          a = _mm512_loadu_ps(from + j);
          b = _mm512_loadu_ps(from + j + 16);
        } else {
          a = _mm512_maskz_loadu_ps(first16(depth - j), from + j);
          b = _mm512_maskz_loadu_ps(first16(depth - j - 16), from + j + 16);
        }
        if (scales != nullptr) {
          a = _mm512_mul_ps(a, scale);
          b = _mm512_mul_ps(b, scale);
        }
        x[v] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
      }
      W::order(x);
      LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
        _mm512_storeu_si512(at + (i + v * kPairLanes) * rows, x[v]);
      }
    }
  }
}

// Packs all groups, one after another.
template <class W>
void pack_rows(const MatmulSlice& s, const Groups& groups, std::int64_t k, std::int64_t depth,
               const float* scales, std::uint16_t* to) {
  const std::int64_t padded = (depth + W::kStep - 1) / W::kStep * W::kStep;
  for (std::int64_t g = 0; g < groups.groups; ++g) {
    const std::int64_t first = groups.first(g);
    pack_group<W>(s, first, groups.first(g + 1) - first, k, depth, scales, to + first * padded);
  }
}

// Stores the sums of `outs` outputs from `out` on: fewer than a panel's, or with factors.
LATHE_INLINE void finish(const Product& p, std::int64_t row, std::int64_t out, std::int64_t outs,
                         const float* sums) {
  float* to = reinterpret_cast<float*>(p.out.row(row)) + out;
  for (std::int64_t i = 0; i < outs; ++i) {
    float y = has_factors(p.w) ? sums[i] * factor_of(p.w, out + i) : sums[i];
    if (p.bias != nullptr) y += p.bias[out + i];
    to[i] = p.add ? to[i] + y : y;
  }
}

}  // namespace
}  // namespace lathe

#include "kernels/cpu/matmul/matmul_bf16_few-inl.h"

namespace lathe {
namespace {

// ---------------------------------------------------------------- many rows

// A packed group of rows of x stays in the first-level cache while it is multiplied by the panels
// of a block of outputs, which stay in the second-level cache. So x is packed where it is used, and
// panels are widened once for all rows of a slice. With a medium number of rows ("some"), a panel
// stays in the first-level cache until it has been multiplied by all rows.
constexpr std::int64_t kTileOuts = 4;      // times kPairTileRows rows: 24 of 32 registers
constexpr std::int64_t kSomeTileRows = 3;  // times kPanelOuts outputs

// Widens weights [outs, depth], rows `stride` apart, to a panel [steps, kOuts, 32] of bf16. Panel
// rows beyond `outs` keep old data: their sums are not read.
template <int kOuts, class W>
void make_panel(const W& codes, typename W::At weights, std::int64_t stride, std::int64_t outs,
                std::int64_t depth, std::uint16_t* panel) {
  constexpr std::int64_t kRun = 256;  // elements of a row before the next row (measured)
  for (std::int64_t begin = 0; begin < depth; begin += kRun) {
    const std::int64_t end = least(begin + kRun, depth);
    for (std::int64_t i = 0; i < outs; ++i) {
      const typename W::At w = weights + i * stride;
      std::uint16_t* to = panel + i * kPairLanes;
      for (std::int64_t k = begin; k < end; k += W::kStep) {
        __m512i wide[W::kVectors];
        if (k + W::kStep <= end) {
          codes.load(w + k, wide);
        } else {
          codes.load(w + k, end - k, wide);
        }
        LATHE_UNROLL for (int v = 0; v < W::kVectors; ++v) {
          _mm512_storeu_si512(to + (k + v * kPairLanes) * kOuts, wide[v]);
        }
      }
    }
  }
}

// The arguments of a group of rows of x times a panel.
struct Tile {
  const std::uint16_t* panel;  // [steps, kTileOuts, 32]
  const std::uint16_t* x;      // [steps, rows, 32]
  std::int64_t steps;
  const float* before;  // [rows, kTileOuts] sums of the earlier depth blocks, or null
  float* to;            // the first output of the first row
  std::int64_t to_stride;
  const float* bias;  // the outputs' bias, or null
  bool add;           // add to what `to` holds
  // Addresses to prefetch to the second-level cache meanwhile, one of each per step: consecutive
  // lines of x, and weights w_ahead_bytes apart.
  const char* x_ahead;
  const char* w_ahead;
  std::int64_t w_ahead_bytes;
};

template <int kRows, int kOuts>
__attribute__((noinline)) void panel_tile(const Tile& t) {
  __m512 acc[kRows][kOuts];
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kOuts; ++i) acc[r][i] = _mm512_setzero_ps();
  }
  const std::uint16_t* panel = t.panel;
  const std::uint16_t* x = t.x;
  const char* x_ahead = t.x_ahead;
  const char* w_ahead = t.w_ahead;
  const std::int64_t w_ahead_bytes = t.w_ahead_bytes;
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) __builtin_prefetch(t.to + r * t.to_stride, 1, 3);
  for (std::int64_t s = t.steps; s > 0; --s) {
    __builtin_prefetch(x_ahead, 0, 2);
    __builtin_prefetch(w_ahead, 0, 2);
    x_ahead += 64;
    w_ahead += w_ahead_bytes;
    // Keep the fewer vectors (of weights or x) in registers.
    if (kOuts < kRows) {
      __m512i w[kOuts];
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        w[i] = _mm512_loadu_si512(panel + i * kPairLanes);
        keep_in_register(w[i]);
      }
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        __m512i in = _mm512_loadu_si512(x + r * kPairLanes);
        keep_in_register(in);
        LATHE_UNROLL for (int i = 0; i < kOuts; ++i) acc[r][i] = dot(acc[r][i], w[i], in);
      }
    } else {
      __m512i in[kRows];
      LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
        in[r] = _mm512_loadu_si512(x + r * kPairLanes);
        keep_in_register(in[r]);
      }
      LATHE_UNROLL for (int i = 0; i < kOuts; ++i) {
        __m512i w = _mm512_loadu_si512(panel + i * kPairLanes);
        keep_in_register(w);
        LATHE_UNROLL for (int r = 0; r < kRows; ++r) acc[r][i] = dot(acc[r][i], w, in[r]);
      }
    }
    panel += kOuts * kPairLanes;
    x += kRows * kPairLanes;
  }
  LATHE_UNROLL for (int r = 0; r < kRows; ++r) {
    LATHE_UNROLL for (int i = 0; i < kOuts; i += 4) {
      const __m128 before =
          t.before == nullptr ? _mm_setzero_ps() : _mm_loadu_ps(t.before + r * kOuts + i);
      __m128 y = _mm_add_ps(before, sums4(acc[r] + i));
      float* to = t.to + r * t.to_stride + i;
      if (t.bias != nullptr) y = _mm_add_ps(y, _mm_loadu_ps(t.bias + i));
      if (t.add) y = _mm_add_ps(_mm_loadu_ps(to), y);
      _mm_storeu_ps(to, y);
    }
  }
}

using PanelTile = void (*)(const Tile&);
constexpr PanelTile kPanelTiles[kPairTileRows] = {
    panel_tile<1, kTileOuts>, panel_tile<2, kTileOuts>, panel_tile<3, kTileOuts>,
    panel_tile<4, kTileOuts>, panel_tile<5, kTileOuts>, panel_tile<6, kTileOuts>};
constexpr PanelTile kSomeTiles[kSomeTileRows] = {
    panel_tile<1, kPanelOuts>, panel_tile<2, kPanelOuts>, panel_tile<3, kPanelOuts>};

// Sets where a panel's sums go after the last depth block. For an incomplete panel, or weights with
// factors, the caller stores them instead.
LATHE_INLINE void aim(const Product& p, std::int64_t row, std::int64_t out, Tile& t) {
  t.to = reinterpret_cast<float*>(p.out.row(row)) + out;
  t.to_stride = p.out.row_stride;
  t.bias = p.bias == nullptr ? nullptr : p.bias + out;
  t.add = p.add;
}

// Prefetches a part of the weights of the panel at (out, k), before group g of `groups`. Panels are
// read from memory in order, each while the previous one is multiplied.
template <class W>
LATHE_INLINE void prefetch_panel(const WeightView& w, std::int64_t out, std::int64_t k,
                                 std::int64_t g, std::int64_t groups) {
  constexpr std::int64_t kLine = W::kLine;
  const std::int64_t most = w.rows - out - 1;
  const std::int64_t lines = (least(kDepthBlock, w.cols - k) + kLine - 1) / kLine;
  const typename W::At from = W::at(w) + (out * w.cols + k);
  for (std::int64_t i = lines * g / groups; i < lines * (g + 1) / groups; ++i) {
    for (std::int64_t r = 0; r < kPanelOuts; ++r) {
      __builtin_prefetch(W::address(from + (least(r, most) * w.cols + i * kLine)), 0, 3);
    }
  }
}

template <class W>
void some_rows(const MatmulSlice& s, float* scratch) {
  const Product& p = *s.product;
  const W codes;
  const Groups groups(s.rows, kSomeTileRows);
  const typename W::At weights = W::at(p.w);
  const std::int64_t panels = (s.outs + kPanelOuts - 1) / kPanelOuts;
  const std::int64_t block = least(kDepthBlock, (p.w.cols + kMxStep - 1) / kMxStep * kMxStep);
  auto* panel = reinterpret_cast<std::uint16_t*>(scratch);        // [steps, kPanelOuts, 32]
  std::uint16_t* packed = panel + kPanelOuts * block;             // [groups][steps, rows, 32]
  float* all_sums = scratch + (kPanelOuts + s.rows) * block / 2;  // [panels][rows, kPanelOuts]
  for (std::int64_t k = 0; k < p.w.cols; k += kDepthBlock) {
    const std::int64_t depth = least(kDepthBlock, p.w.cols - k);
    const std::int64_t steps = (depth + W::kStep - 1) / W::kStep * W::kVectors;
    const bool last_k = k + kDepthBlock >= p.w.cols;
    pack_rows<W>(s, groups, k, depth, scales_of(p.w, s.out, k), packed);
    for (std::int64_t i = 0; i < panels; ++i) {
      const std::int64_t out = s.out + i * kPanelOuts;
      const std::int64_t outs = least(kPanelOuts, s.outs - i * kPanelOuts);
      make_panel<kPanelOuts>(codes, weights + (out * p.w.cols + k), p.w.cols, outs, depth, panel);
      const bool turns = i + 1 == panels;
      const WeightView* next = turns && last_k ? s.next : &p.w;
      const std::int64_t next_out = !turns ? out + kPanelOuts : last_k ? s.next_out : s.out;
      const std::int64_t next_k = !turns ? k : last_k ? 0 : k + kDepthBlock;
      for (std::int64_t g = 0; g < groups.groups; ++g) {
        if (next != nullptr) prefetch_panel<W>(*next, next_out, next_k, g, groups.groups);
        const std::int64_t first = groups.first(g);
        const std::int64_t rows = groups.first(g + 1) - first;
        float* sums = all_sums + (i * s.rows + first) * kPanelOuts;
        const char* none = reinterpret_cast<const char*>(panel);
        Tile t{panel,   packed + first * steps * kPairLanes,
               steps,   k == 0 ? nullptr : sums,
               sums,    kPanelOuts,
               nullptr, false,
               none,    none,
               0};
        const bool aims = outs == kPanelOuts && !has_factors(p.w);
        if (last_k && aims) aim(p, s.row + first, out, t);
        kSomeTiles[rows - 1](t);
        for (std::int64_t r = 0; last_k && !aims && r < rows; ++r) {
          finish(p, s.row + first + r, out, outs, sums + r * kPanelOuts);
        }
      }
    }
  }
}

// The weights of the next depth block to prefetch.
struct NextWeights {
  const WeightView* w;
  std::int64_t out, k;
};

template <class W>
void many_rows(const MatmulSlice& s, float* scratch) {
  // The next weights are prefetched only during the last groups; earlier, the stream of x would
  // evict them again.
  constexpr std::int64_t kPrefetching = 8;
  const Product& p = *s.product;
  const W codes;
  const Groups groups(s.rows, kPairTileRows);
  const typename W::At weights = W::at(p.w);
  const std::int64_t tiles = (s.outs + kTileOuts - 1) / kTileOuts;
  const std::int64_t block = least(kDepthBlock, (p.w.cols + kMxStep - 1) / kMxStep * kMxStep);
  auto* panels = reinterpret_cast<std::uint16_t*>(scratch);    // [tiles][steps, kTileOuts, 32]
  std::uint16_t* packed = panels + tiles * kTileOuts * block;  // [steps, rows of a group, 32]
  // [groups][tiles][rows, kTileOuts], if K has several blocks.
  float* all_sums = scratch + (tiles * kTileOuts + kPairTileRows) * block / 2;
  float some_sums[kPairTileRows * kTileOuts];
  for (std::int64_t k = 0; k < p.w.cols; k += kDepthBlock) {
    const std::int64_t depth = least(kDepthBlock, p.w.cols - k);
    const std::int64_t steps = (depth + W::kStep - 1) / W::kStep * W::kVectors;
    const bool last = k + kDepthBlock >= p.w.cols;
    const NextWeights next =
        last ? NextWeights{s.next, s.next_out, 0} : NextWeights{&p.w, s.out, k + kDepthBlock};
    const std::int64_t next_outs =
        next.w == nullptr ? 0 : least(tiles * kTileOuts, next.w->rows - next.out);
    const std::int64_t quiet = groups.groups > kPrefetching ? groups.groups - kPrefetching : 0;
    for (std::int64_t g = 0; g < groups.groups; ++g) {
      const std::int64_t first = groups.first(g);
      const std::int64_t rows = groups.first(g + 1) - first;
      pack_group<W>(s, first, rows, k, depth, scales_of(p.w, s.out, k), packed);
      const PanelTile multiply = kPanelTiles[rows - 1];
      // Prefetch: two tiles per row of x of the next group, one per row of weights.
      const bool turns = g + 1 == groups.groups;
      const std::int64_t x_tiles = turns && last ? 0 : 2 * rows;
      const std::int64_t x_first = turns ? 0 : first + rows;
      const std::int64_t x_k = turns ? k + kDepthBlock : k;
      const auto part = [&](std::int64_t i) {
        return i <= quiet ? 0 : next_outs * (i - quiet) / (groups.groups - quiet);
      };
      const std::int64_t w_first = part(g);
      const std::int64_t w_tiles = part(g + 1) - w_first;
      float* sums = all_sums + first * tiles * kTileOuts;
      Tile t{};
      t.panel = panels;
      t.x = packed;
      t.steps = steps;
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t out = s.out + i * kTileOuts;
        const std::int64_t outs = least(kTileOuts, s.outs - i * kTileOuts);
        if (g == 0) {
          make_panel<kTileOuts>(codes, weights + (out * p.w.cols + k), p.w.cols, outs, depth,
                                panels + i * kTileOuts * block);
        }
        t.x_ahead = t.w_ahead = reinterpret_cast<const char*>(t.panel);
        t.w_ahead_bytes = 0;
        if (i < x_tiles) {
          const std::int64_t r = least(x_first + i / 2, s.rows - 1);
          t.x_ahead = reinterpret_cast<const char*>(x_row(p, s.row + r) + x_k) + i % 2 * steps * 64;
        }
        if (i < w_tiles) {
          t.w_ahead = static_cast<const char*>(
              W::address(W::at(*next.w) + ((next.out + w_first + i) * next.w->cols + next.k)));
          t.w_ahead_bytes = 64 * kPairLanes / W::kLine;
        }
        t.before = k == 0 ? nullptr : sums;
        const bool whole = outs == kTileOuts && !has_factors(p.w);
        t.to = last ? some_sums : sums;
        t.to_stride = kTileOuts;
        t.bias = nullptr;
        t.add = false;
        if (last && whole) aim(p, s.row + first, out, t);
        multiply(t);
        for (std::int64_t r = 0; last && !whole && r < rows; ++r) {
          finish(p, s.row + first + r, out, outs, some_sums + r * kTileOuts);
        }
        sums += rows * kTileOuts;
        t.panel += kTileOuts * block;
      }
    }
  }
}

// Measured tile shapes. Widening e4m3 is expensive, so it prefers tiles of fewer outputs and more
// rows, and already at fewer rows a panel.
template <class W>
void slice_of(const MatmulSlice& s, float* scratch) {
  constexpr bool kWidens = W::kVectors > 1;
  auto* packed = reinterpret_cast<std::uint16_t*>(scratch);
  if (s.rows > (kWidens ? kMostFewRows / 2 : kMostFewRows)) {
    // The next part of the slice; its outputs share their scales.
    MatmulSlice part = s;
    for (const std::int64_t end = s.out + s.outs; part.out < end; part.out += part.outs) {
      part.outs = least(end, (part.out / kWeightBlock + 1) * kWeightBlock) - part.out;
      const bool more = part.out + part.outs < end;
      part.next = more ? &s.product->w : s.next;
      part.next_out = more ? part.out + part.outs : s.next_out;
      if (s.rows <= kSomeRows) {
        some_rows<W>(part, scratch);
      } else {
        many_rows<W>(part, scratch);
      }
    }
    return;
  }
  // Up to 6 rows are one group with tiles of 4 outputs, and weights are prefetched to the
  // second-level cache. Several groups share a tile's weights and need them in the first level.
  if (kWidens || s.rows == 1 || (s.rows > 3 && s.rows <= 6)) return few_rows<W, 4>(s, packed);
  few_rows<W, 8>(s, packed);
}

// The sizes of most checkpoints have code of their own.
template <class Half>
void slice_of_u4(const MatmulSlice& s, float* scratch) {
  const GroupScales& groups = s.product->w.groups;
  const bool zeros = groups.zeros != nullptr;
  if (groups.size == 128) {
    return zeros ? slice_of<U4LineCodes<Half, true> >(s, scratch)
                 : slice_of<U4LineCodes<Half, false> >(s, scratch);
  }
  if (std::is_same_v<Half, bf16> && groups.size == 32 && !zeros) {
    return slice_of<U4Codes<bf16, 32> >(s, scratch);
  }
  slice_of<U4Codes<Half> >(s, scratch);
}

double dot_loop(std::int64_t rounds, float* sink) {
  constexpr int kChains = 20;  // more than latency x execution pipes, so none is idle
  __m512 x[kChains];
  for (int i = 0; i < kChains; ++i) x[i] = _mm512_set1_ps(sink[2 + i % 12] + static_cast<float>(i));
  const __m512i a = _mm512_set1_epi16(static_cast<short>(0x3f7f));  // just below 1
  __m512i b = _mm512_set1_epi16(static_cast<short>(0x3a00));
  keep_in_register(b);
  for (std::int64_t n = 0; n < rounds; ++n) {
#pragma GCC unroll 20
    for (int i = 0; i < kChains; ++i) x[i] = dot(x[i], a, b);
  }
  for (int i = 1; i < kChains; ++i) x[0] = _mm512_add_ps(x[0], x[i]);
  sink[2] = _mm512_reduce_add_ps(x[0]);
  return static_cast<double>(rounds) * kChains * 64;
}

}  // namespace
}  // namespace lathe

LATHE_TARGET_END

namespace lathe {

double bf16_dot_loop(std::int64_t rounds, float* sink) { return dot_loop(rounds, sink); }

void matmul_slice_bf16(const MatmulSlice& s, float* scratch) {
  if (s.product->w.dtype == DType::bf16) return slice_of<Bf16Codes>(s, scratch);
  if (s.product->w.dtype == DType::u4) {
    return s.product->w.groups.dtype == DType::bf16 ? slice_of_u4<bf16>(s, scratch)
                                                    : slice_of_u4<f16>(s, scratch);
  }
  if (s.product->w.groups.data != nullptr) return slice_of<NvCodes>(s, scratch);
  if (s.product->w.dtype == DType::e2m1) return slice_of<E2m1Codes>(s, scratch);
  slice_of<E4m3Codes>(s, scratch);
}

#endif  // LATHE_BF16_DOT

}  // namespace lathe
