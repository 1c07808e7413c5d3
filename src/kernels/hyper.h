// Manifold-constrained hyper-connections: the arguments that every device's operators take.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"

namespace lathe {

inline constexpr std::int32_t kMaxStreams = 16;

// A row's residual state is S streams of n elements, [S, n]. m = product[t] / sqrt(mean(x[t]^2) +
// norm_eps), the mean over all S * n elements.

/// What enters a part of a layer, and how its result goes back. Of m, scale and base, with S of
/// them for pre and for post and S * S for comb, from [j] to [k]:
///   pre[j] = sigmoid(scale[0] m[j] + base[j]) + eps
///   post[k] = 2 sigmoid(scale[1] m[S + k] + base[S + k])
///   comb = softmax over k of scale[2] m[2 S + j S + k] + base[...], + eps; then every column is
///     divided by its sum + eps, and iterations - 1 times every row likewise and every column again
/// out[t] = sum of pre[j] x[t, j].
struct HyperMix {
  RowsView x;                    // [T, S * n] f32
  RowsView product;              // [T, 2 S + S * S] f32
  std::span<const float> base;   // [2 S + S * S]
  std::span<const float> scale;  // [3]
  std::int32_t streams = 0;      // S
  std::int32_t iterations = 0;
  float eps = 0;
  float norm_eps = 0;
  MutableRowsView out;  // [T, n] f32
  MutableRowsView mix;  // [T, S + S * S] f32: post, then comb
};

/// x[t, k] = post[k] y[t] + sum over j of comb[j, k] x[t, j].
struct HyperAdd {
  RowsView y;    // [T, n] f32
  RowsView mix;  // as HyperMix::mix
  std::int32_t streams = 0;
  MutableRowsView x;  // [T, S * n] f32
};

/// out[t] = sum over j of (sigmoid(scale[0] m[j] + base[j]) + eps) x[t, j].
struct HyperHead {
  RowsView x;                    // [T, S * n] f32
  RowsView product;              // [T, S] f32
  std::span<const float> base;   // [S]
  std::span<const float> scale;  // [1]
  std::int32_t streams = 0;
  float eps = 0;
  float norm_eps = 0;
  MutableRowsView out;  // [T, n] f32
};

}  // namespace lathe
