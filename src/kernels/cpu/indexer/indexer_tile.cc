#include "kernels/cpu/indexer/indexer_tile.h"

#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/indexer/indexer_tile.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "layout/codec/codec_fast-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::VFromD<DF>;

// Vectors of heads, and keys, of a register tile: as many accumulators as leave registers for the
// operands.
#if HWY_TARGET <= HWY_AVX3
constexpr int kVectors = 4;
constexpr int kKeys = 6;
#else
constexpr int kVectors = 2;
constexpr int kKeys = 4;
#endif

void decode_codes(const std::uint8_t* codes, std::int64_t n, float* out) {
#if HWY_TARGET == HWY_SCALAR
  for (std::int64_t i = 0; i < n; ++i) out[i] = to_f32(e4m3{codes[i]});
#else
  decode_e4m3(codes, static_cast<std::size_t>(n), 1.0f, out);
#endif
}

// Heads of the next group: kVectors vectors, or fewer in the last group. In a group, q is
// [dim, heads].
std::int64_t group_heads(std::int64_t left) {
  const auto full = static_cast<std::int64_t>(kVectors * hn::Lanes(DF()));
  return left < full ? left : full;
}

void prepare_row(const e4m3* codes, const float* weights, std::int64_t heads, std::int64_t dim,
                 float* q, float* w) {
  const std::int64_t padded = padded_index_heads(heads);
  for (std::int64_t h = 0; h < padded; ++h) w[h] = h < heads ? weights[h] : 0.0f;
  for (std::int64_t first = 0; first < padded;) {
    const std::int64_t n = group_heads(padded - first);
    float* group = q + first * dim;
    for (std::int64_t h = 0; h < n; ++h) {
      if (first + h >= heads) {
        for (std::int64_t d = 0; d < dim; ++d) group[d * n + h] = 0.0f;
        continue;
      }
      const auto* row = reinterpret_cast<const std::uint8_t*>(codes + (first + h) * dim);
      for (std::int64_t d = 0; d < dim; d += 16) {
        float part[16];
        decode_codes(row + d, 16, part);
        for (std::int64_t i = 0; i < 16; ++i) group[(d + i) * n + h] = part[i];
      }
    }
    first += n;
  }
}

// Adds the part of V vectors of heads to the sums [0 .. K) of K keys.
template <int V, int K>
HWY_INLINE void score_keys(const float* HWY_RESTRICT q, const float* HWY_RESTRICT w,
                           const float* HWY_RESTRICT keys, std::int64_t dim,
                           float* HWY_RESTRICT sums) {
  const DF d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  VF acc[K][V];
  for (int k = 0; k < K; ++k) {
    for (int v = 0; v < V; ++v) acc[k][v] = hn::Zero(d);
  }
  for (std::int64_t i = 0; i < dim; ++i) {
    VF heads[V];
    for (int v = 0; v < V; ++v) heads[v] = hn::LoadU(d, q + (i * V + v) * lanes);
    for (int k = 0; k < K; ++k) {
      const VF key = hn::Set(d, keys[k * dim + i]);
      for (int v = 0; v < V; ++v) acc[k][v] = hn::MulAdd(heads[v], key, acc[k][v]);
    }
  }
  for (int k = 0; k < K; ++k) {
    VF sum = hn::Zero(d);
    for (int v = 0; v < V; ++v) {
      // Not Max(): on x86 it would turn NaN into 0.
      const VF relu = hn::IfThenZeroElse(hn::Lt(acc[k][v], hn::Zero(d)), acc[k][v]);
      sum = hn::MulAdd(relu, hn::LoadU(d, w + v * lanes), sum);
    }
    sums[k] += hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

template <int V>
void score_group(const float* q, const float* w, const float* keys, std::int64_t dim,
                 std::int64_t n, float* sums) {
  std::int64_t j = 0;
  for (; j + kKeys <= n; j += kKeys) score_keys<V, kKeys>(q, w, keys + j * dim, dim, sums + j);
  for (; j < n; ++j) score_keys<V, 1>(q, w, keys + j * dim, dim, sums + j);
}

void score_tile(const float* q, const float* w, std::int64_t heads, std::int64_t dim,
                const float* keys, const float* scales, std::int64_t n, float* logits) {
  const std::int64_t padded = padded_index_heads(heads);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(DF()));
  for (std::int64_t j = 0; j < n; ++j) logits[j] = 0;
  for (std::int64_t first = 0; first < padded;) {
    const std::int64_t count = group_heads(padded - first);
    const float* group = q + first * dim;
    switch (count / lanes) {
      case 1:
        score_group<1>(group, w + first, keys, dim, n, logits);
        break;
      case 2:
        score_group<2>(group, w + first, keys, dim, n, logits);
        break;
#if HWY_TARGET <= HWY_AVX3
      case 3:
        score_group<3>(group, w + first, keys, dim, n, logits);
        break;
      case 4:
        score_group<4>(group, w + first, keys, dim, n, logits);
        break;
#endif
    }
    first += count;
  }
  for (std::int64_t j = 0; j < n; ++j) logits[j] *= scales[j];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(decode_codes);
HWY_EXPORT(prepare_row);
HWY_EXPORT(score_tile);

void index_decode(const std::uint8_t* codes, std::int64_t n, float* out) {
  HWY_DYNAMIC_DISPATCH(decode_codes)(codes, n, out);
}

void index_prepare(const e4m3* codes, const float* weights, std::int64_t heads, std::int64_t dim,
                   float* q, float* w) {
  HWY_DYNAMIC_DISPATCH(prepare_row)(codes, weights, heads, dim, q, w);
}

void index_score(const float* q, const float* w, std::int64_t heads, std::int64_t dim,
                 const float* keys, const float* scales, std::int64_t n, float* logits) {
  HWY_DYNAMIC_DISPATCH(score_tile)(q, w, heads, dim, keys, scales, n, logits);
}

}  // namespace lathe
#endif  // HWY_ONCE
