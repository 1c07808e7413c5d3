// Hyper-connections of several residual streams: what is computed, and the operators' arguments.
#pragma once

#include <cstdint>
#include <span>

#include "base/rows_view.h"

namespace lathe {

inline constexpr std::int32_t kMaxStreams = 16;

// A row's residual state is S streams of n elements, [S, n]. Below, m = product[t] /
// sqrt(mean(x[t]^2) + norm_eps), with the mean over all S * n elements. `product` is x times the
// layer's mixing weight.

/// The input of a part of a layer (attention or feed-forward), and the weights by which HyperAdd
/// adds the part's result to the streams. m and base hold S elements for pre, S for post and S * S
/// for comb:
///   pre[j] = sigmoid(scale[0] m[j] + base[j]) + eps
///   post[k] = post_scale sigmoid(scale[1] m[S + k] + base[S + k]) + post_eps
///   comb[j, k] = softmax over k of (scale[2] m[2 S + j S + k] + base[2 S + j S + k]), + eps. Then
///     each column is divided by its sum + eps; then, iterations - 1 times, each row and again each
///     column.
/// Without iterations there is no comb: product and base have 2 S columns, scale has two, mix S.
/// out[t] = sum over j of pre[j] x[t, j].
struct HyperMix {
  RowsView x;                    // [T, S * n] f32
  RowsView product;              // [T, 2 S + S * S] f32
  std::span<const float> base;   // [2 S + S * S]
  std::span<const float> scale;  // [3]
  std::int32_t streams = 0;      // S
  std::int32_t iterations = 0;
  float eps = 0;
  float post_scale = 2, post_eps = 0;
  float norm_eps = 0;
  MutableRowsView out;  // [T, n] f32
  MutableRowsView mix;  // [T, S + S * S] f32 out: post, then comb
};

/// x[t, k] = post[k] y[t] + sum over j of comb[j, k] x[t, j], or x[t, k] += post[k] y[t] without
/// comb.
struct HyperAdd {
  RowsView y;    // [T, n] f32
  RowsView mix;  // as HyperMix::mix
  std::int32_t streams = 0;
  MutableRowsView x;  // [T, S * n] f32
};

/// out[t] = sum over j of (sigmoid(scale[0] m[j] + base[j]) + eps) x[t, j], or without `product`
/// the mean of the streams.
struct HyperHead {
  RowsView x;                         // [T, S * n] f32
  RowsView product = {};              // [T, S] f32, or no columns
  std::span<const float> base = {};   // [S]
  std::span<const float> scale = {};  // [1]
  std::int32_t streams = 0;
  float eps = 0;
  float norm_eps = 0;
  MutableRowsView out;  // [T, n] f32
};

}  // namespace lathe
