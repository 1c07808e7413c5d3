// Per SIMD target: scores, softmax and weighted values of one tile of keys.
#include "kernels/cpu/latent/latent_math.h"

#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent/latent_tile.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/tile/tile_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

using D = TileTag;
using V = TileVec;
using Du = hn::RebindToUnsigned<D>;

// M rows of a register block. With 4 keys or 4 vectors of values this gives 16 accumulators of 32
// registers, or 8 of 16. Eight chains hide the latency of an FMA.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kMRows = 4;
#else
constexpr int kMRows = 2;
#endif
constexpr int kAcross = 4;

// ---------------------------------------------------------------- scores

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void store_sums(D d, const V (&x)[kAcross], float* to) {
  for (int i = 0; i < kAcross; ++i) hn::StoreU(x[i], d, to + i);
}
#else
template <class D4>
HWY_INLINE void store_sum_of_blocks(D4 d, hn::VFromD<D4> x, float* to) {
  if constexpr (hn::MaxLanes(D4()) == 4) {
    hn::StoreU(x, d, to);
  } else {
    const hn::Half<D4> dh;
    store_sum_of_blocks(dh, hn::Add(hn::LowerHalf(dh, x), hn::UpperHalf(dh, x)), to);
  }
}

// Stores the lane sums of four vectors x. Two rounds of interleaving leave the sums of each block
// of four lanes in its lanes, then the blocks are added.
HWY_INLINE void store_sums(D d, const V (&x)[kAcross], float* to) {
  const hn::RepartitionToWide<Du> dw;
  const V ab = hn::Add(hn::InterleaveLower(d, x[0], x[1]), hn::InterleaveUpper(d, x[0], x[1]));
  const V cd = hn::Add(hn::InterleaveLower(d, x[2], x[3]), hn::InterleaveUpper(d, x[2], x[3]));
  const auto ab2 = hn::BitCast(dw, ab);
  const auto cd2 = hn::BitCast(dw, cd);
  const V low = hn::BitCast(d, hn::InterleaveLower(dw, ab2, cd2));
  const V high = hn::BitCast(d, hn::InterleaveUpper(dw, ab2, cd2));
  store_sum_of_blocks(d, hn::Add(low, high), to);
}
#endif

// Scores of kRows M rows for kAcross keys.
template <int kRows>
HWY_INLINE void score_block(const float* HWY_RESTRICT q, const float* HWY_RESTRICT keys,
                            std::int64_t width, std::int64_t key_stride,
                            float* HWY_RESTRICT scores) {
  const D d;
  V acc[kRows][kAcross];
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kAcross; ++k) acc[r][k] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < width; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    V key[kAcross];
    for (int k = 0; k < kAcross; ++k) key[k] = hn::LoadU(d, keys + k * key_stride + i);
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::LoadU(d, q + r * width + i);
      for (int k = 0; k < kAcross; ++k) acc[r][k] = hn::MulAdd(x, key[k], acc[r][k]);
    }
  }
  for (int r = 0; r < kRows; ++r) store_sums(d, acc[r], scores + r * kLatentTile);
}

template <int kRows>
HWY_INLINE void score_keys(const LatentTileJob& job, std::int64_t m_row, std::int64_t begin,
                           std::int64_t end, std::int64_t lines_a_step) {
  for (std::int64_t k = begin; k < end; k += kAcross) {
    for (std::int64_t i = 0; i < lines_a_step; ++i) job.ahead->step();
    score_block<kRows>(job.q + m_row * job.width, job.keys + k * job.key_stride, job.width,
                       job.key_stride, job.scores + m_row * kLatentTile + k);
  }
}

HWY_INLINE std::int64_t most_visible(const LatentTileJob& job, std::int64_t m_row,
                                     std::int64_t m_rows) {
  std::int64_t most = 0;
  for (std::int64_t i = m_row; i < m_row + m_rows; ++i) {
    most = job.visible[i] > most ? job.visible[i] : most;
  }
  return most;
}

// Rows of the widest block that `left` M rows fill.
HWY_INLINE int block_of(std::int64_t left) { return left >= kMRows ? kMRows : left >= 2 ? 2 : 1; }

// Eight keys stay in the first-level cache while all M rows are multiplied with them.
void score_tile(const LatentTileJob& job) {
  constexpr std::int64_t kResident = 8;
  const std::int64_t steps = (job.m_rows + kMRows - 1) / kMRows * (kLatentTile / kAcross);
  const std::int64_t ahead = (job.ahead_lines + steps - 1) / steps;
  for (std::int64_t k = 0; k < kLatentTile; k += kResident) {
    for (std::int64_t m_row = 0; m_row < job.m_rows;) {
      const int block = block_of(job.m_rows - m_row);
      const std::int64_t most = most_visible(job, m_row, block);
      const std::int64_t end = most < k + kResident ? most : k + kResident;
      if (block == kMRows) {
        score_keys<kMRows>(job, m_row, k, end, ahead);
      } else if (block == 2) {
        score_keys<2>(job, m_row, k, end, ahead);
      } else {
        score_keys<1>(job, m_row, k, end, ahead);
      }
      m_row += block;
    }
  }
}

// ---------------------------------------------------------------- values

// out = out * rescale + P * values, for kRows M rows and kVecs vectors of the values.
template <int kRows, int kVecs>
HWY_INLINE void value_block(const LatentTileJob& job, std::int64_t m_row, std::int64_t column) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT probs = job.scores + m_row * kLatentTile;
  const float* HWY_RESTRICT values = job.keys + column;
  float* HWY_RESTRICT out = job.state.out + m_row * job.out_stride + column;
  V acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r) {
    const V rescale = hn::Set(d, job.rescale[m_row + r]);
    for (int c = 0; c < kVecs; ++c) {
      acc[r][c] = hn::Mul(hn::LoadU(d, out + r * job.out_stride + c * lanes), rescale);
    }
  }
  const std::int64_t n = job.visible[m_row];
  for (std::int64_t k = 0; k < n; ++k) {
    V value[kVecs];
    for (int c = 0; c < kVecs; ++c) value[c] = hn::LoadU(d, values + c * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V w = hn::Set(d, probs[r * kLatentTile + k]);
      for (int c = 0; c < kVecs; ++c) acc[r][c] = hn::MulAdd(w, value[c], acc[r][c]);
    }
    values += job.key_stride;
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVecs; ++c) {
      hn::StoreU(acc[r][c], d, out + r * job.out_stride + c * lanes);
    }
  }
}

// Number of M rows from `m_row` on that see the same number of keys, up to kMRows.
HWY_INLINE std::int64_t equally_visible(const LatentTileJob& job, std::int64_t m_row) {
  std::int64_t n = 1;
  while (n < kMRows && m_row + n < job.m_rows && job.visible[m_row + n] == job.visible[m_row]) ++n;
  return n;
}

// A column of kVecs vectors stays in the first-level cache while all M rows are multiplied with it.
// M rows that see different keys are not blocked together: 0 * NaN from a key that one of them must
// not see would be NaN.
template <int kVecs>
HWY_INLINE void value_column(const LatentTileJob& job, std::int64_t column) {
  for (std::int64_t m_row = 0; m_row < job.m_rows;) {
    const int block = block_of(equally_visible(job, m_row));
    if (job.visible[m_row] == 0) {
    } else if (block == kMRows) {
      value_block<kMRows, kVecs>(job, m_row, column);
    } else if (block == 2) {
      value_block<2, kVecs>(job, m_row, column);
    } else {
      value_block<1, kVecs>(job, m_row, column);
    }
    m_row += block;
  }
}

void add_tile(const LatentTileJob& job) {
  score_tile(job);
  for (std::int64_t m_row = 0; m_row < job.m_rows; ++m_row) {
    if (job.visible[m_row] == 0) continue;
    job.rescale[m_row] = softmax_step(job.scores + m_row * kLatentTile, 0,
                                      static_cast<std::size_t>(job.visible[m_row]), nullptr,
                                      job.state.softmax[m_row]);
  }
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(D()));
  std::int64_t column = 0;
  for (; column + kAcross * lanes <= job.out_stride; column += kAcross * lanes) {
    value_column<kAcross>(job, column);
  }
  for (; column < job.out_stride; column += lanes) value_column<1>(job, column);
}

void fold(const LatentState& from, const LatentState& into, std::int64_t m_rows,
          std::int64_t out_stride) {
  for (std::int64_t m_row = 0; m_row < m_rows; ++m_row) {
    fold_state(into.softmax[m_row], into.out + m_row * out_stride, from.softmax[m_row],
               from.out + m_row * out_stride, static_cast<std::size_t>(out_stride));
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(add_tile);
HWY_EXPORT(fold);
HWY_EXPORT(target_name);

void latent_add_tile(const LatentTileJob& job) { HWY_DYNAMIC_DISPATCH(add_tile)(job); }
void latent_fold(const LatentState& from, const LatentState& into, std::int64_t m_rows,
                 std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(fold)(from, into, m_rows, out_stride);
}
const char* latent_simd_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace lathe
#endif  // HWY_ONCE
