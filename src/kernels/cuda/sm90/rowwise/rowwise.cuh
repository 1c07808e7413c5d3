// Element-wise kernels over rows: a block processes kRowThreads columns of a row.
#pragma once

#include "kernels/cuda/common/activated.cuh"
#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/rowwise/cache_hints.cuh"
#include "kernels/cuda/sm90/rowwise/rowwise.h"

namespace lathe::cuda {

inline constexpr int kRowThreads = 128;

/// The thread's row and column; false past the last column.
__device__ inline bool my_element(std::int64_t cols, std::int64_t& row, std::int64_t& col) {
  row = blockIdx.x;
  col = std::int64_t{blockIdx.y} * kRowThreads + threadIdx.x;
  return col < cols;
}

/// Elements per thread if rows consist of whole 16-byte words (wide() in rowwise.cu).
inline constexpr int kWide = 8;

struct Elements {
  float v[kWide];
};
/// kWide elements of f32 or bf16 from `at` on, aligned to 16 bytes.
__device__ __forceinline__ Elements load_wide(const std::byte* data, DType dtype, std::int64_t at) {
  Elements out;
  if (dtype == DType::f32) {
    const auto* from = reinterpret_cast<const uint4*>(data + at * 4);
    const uint4 a = from[0], b = from[1];
    const std::uint32_t words[kWide] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
    LATHE_UNROLL
    for (int i = 0; i < kWide; ++i) out.v[i] = bits_to_float(words[i]);
  } else {
    const uint4 a = *reinterpret_cast<const uint4*>(data + at * 2);
    const std::uint32_t words[kWide / 2] = {a.x, a.y, a.z, a.w};
    LATHE_UNROLL
    for (int i = 0; i < kWide / 2; ++i) {
      out.v[2 * i] = bits_to_float(words[i] << 16);
      out.v[2 * i + 1] = bits_to_float(words[i] & 0xffff0000u);
    }
  }
  return out;
}
__device__ __forceinline__ void store_wide(std::byte* data, DType dtype, std::int64_t at,
                                           const Elements& x) {
  if (dtype == DType::f32) {
    auto* to = reinterpret_cast<uint4*>(data + at * 4);
    to[0] = {float_to_bits(x.v[0]), float_to_bits(x.v[1]), float_to_bits(x.v[2]),
             float_to_bits(x.v[3])};
    to[1] = {float_to_bits(x.v[4]), float_to_bits(x.v[5]), float_to_bits(x.v[6]),
             float_to_bits(x.v[7])};
  } else {
    std::uint32_t words[kWide / 2];
    LATHE_UNROLL
    for (int i = 0; i < kWide / 2; ++i) {
      words[i] = to_bf16(x.v[2 * i]).bits | std::uint32_t{to_bf16(x.v[2 * i + 1]).bits} << 16;
    }
    *reinterpret_cast<uint4*>(data + at * 2) = {words[0], words[1], words[2], words[3]};
  }
}

/// First element of a row's token in the table; -1 of padding rows and of tokens that the table
/// does not have.
__device__ inline std::int64_t embedding_at(const EmbedParams& p, std::int64_t row) {
  const std::int64_t token = p.tokens[row] - p.first;
  return token >= 0 && token < p.vocab ? token * p.cols : -1;
}

static __global__ void __launch_bounds__(kRowThreads)
    embed_kernel(const __grid_constant__ EmbedParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (my_element(p.cols, row, col)) {
    const std::int64_t from = embedding_at(p, row), at = from + col;
    float v = 0;
    if (from >= 0) {
      v = p.dtype == DType::f16 ? to_f32(reinterpret_cast<const f16*>(p.table)[at])
                                : load_element(p.table, p.dtype, at);
    }
    store_element(p.out, row, col, v * p.scale);
  }
}

/// The same for rows of whole words: a thread has kWide columns.
static __global__ void __launch_bounds__(kRowThreads)
    embed_wide_kernel(const __grid_constant__ EmbedParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, word;
  if (!my_element(p.cols / kWide, row, word)) return;
  const std::int64_t from = embedding_at(p, row), col = word * kWide;
  Elements v = {};
  if (from >= 0) v = load_wide(p.table, p.dtype, from + col);
  LATHE_UNROLL
  for (float& x : v.v) x *= p.scale;
  store_wide(p.out.data, p.out.dtype, row * p.out.stride + col, v);
}

static __global__ void __launch_bounds__(kRowThreads)
    gather_rows_kernel(const __grid_constant__ GatherRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (my_element(p.cols, row, col)) {
    store_element(p.out, row, col, load_element(p.x, p.of[row], col));
  }
}

/// Rows of whole 16-byte words, p.words each. A block copies kRowThreads words of each of kRows
/// rows; it loads all of them before it stores the first.
template <int kRows>
static __global__ void __launch_bounds__(kRowThreads)
    gather_words_kernel(const __grid_constant__ GatherRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t first = std::int64_t{blockIdx.x} * kRows;
  const std::int64_t word = std::int64_t{blockIdx.y} * kRowThreads + threadIdx.x;
  if (word >= p.words) return;
  const std::int64_t bytes = p.x.dtype == DType::f32 ? 4 : 2;
  const auto* from = reinterpret_cast<const uint4*>(p.x.data) + word;
  auto* to = reinterpret_cast<uint4*>(p.out.data) + word;
  uint4 words[kRows];
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t row = first + i < p.rows ? first + i : p.rows - 1;
    words[i] = from[p.of[row] * (p.x.stride * bytes / 16)];
  }
  LATHE_UNROLL
  for (int i = 0; i < kRows; ++i) {
    if (first + i >= p.rows) continue;
    uint4* const at = to + (first + i) * (p.out.stride * bytes / 16);
    if (p.once) {
      store_once(at, words[i]);
    } else {
      *at = words[i];
    }
  }
}

static __global__ void __launch_bounds__(kRowThreads)
    gate_rows_kernel(const __grid_constant__ GateRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, i;
  if (!my_element(p.heads * p.cols, row, i)) return;
  const std::uint32_t head = static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(p.cols);
  const std::int64_t col = p.one ? 0 : i - head * static_cast<std::uint32_t>(p.cols);
  constexpr float kLog2e = 1.44269504f;
  const float gate = load_element(p.gate, row, head * p.gate_head + col);
  const float x = load_element(DeviceRows{p.x.data, p.x.stride, p.x.dtype}, row, i);
  store_element(p.x, row, i, divide_fast(x, 1 + exp2_fast(-kLog2e * gate)));
}

static __global__ void __launch_bounds__(kRowThreads)
    copy_rows_kernel(const __grid_constant__ CopyRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, i;
  if (!my_element(p.heads * p.cols / p.each, row, i)) return;
  const auto element = static_cast<std::uint32_t>(i) * static_cast<std::uint32_t>(p.each);
  const std::uint32_t head = element / static_cast<std::uint32_t>(p.cols);
  const std::int64_t col = element - head * static_cast<std::uint32_t>(p.cols);
  const std::int64_t from = head * p.x_head + col, to = head * p.out_head + col;
  if (p.each == 1) {
    float v = load_element(p.x, row, from);
    if (p.add) v += load_element(DeviceRows{p.out.data, p.out.stride, p.out.dtype}, row, to);
    store_element(p.out, row, to, v);
    return;
  }
  Elements x = load_wide(p.x.data, p.x.dtype, row * p.x.stride + from);
  if (p.add) {
    const Elements before = load_wide(p.out.data, p.out.dtype, row * p.out.stride + to);
    LATHE_UNROLL
    for (int j = 0; j < kWide; ++j) x.v[j] += before.v[j];
  }
  store_wide(p.out.data, p.out.dtype, row * p.out.stride + to, x);
}

static __global__ void __launch_bounds__(kRowThreads)
    scale_rows_kernel(const __grid_constant__ ScaleRowsParams p) {
  let_next_begin();
  wait_for_previous();
  std::int64_t row, col;
  if (!my_element(p.cols, row, col)) return;
  float* const at = p.x + row * p.stride + col;
  const float v = *at * (p.factor != nullptr ? p.times * *p.factor : p.times);
  *at = p.limit > 0 ? p.limit * tanhf(v / p.limit) : v;
}

// `out` may be the first columns of a gate that interleaves both projections. Then one block
// processes the whole row and reads each group of columns before it overwrites any of them.
static __global__ void __launch_bounds__(kRowThreads)
    gated_activation_kernel(const __grid_constant__ ActivationParams p) {
  let_next_begin();
  wait_for_previous();
  if (p.up.data != nullptr) {
    std::int64_t row, i;
    if (!my_element(p.cols / p.each, row, i)) return;
    if (p.each == 1) {
      const float v = load_element(p.gate, row, i);
      store_element(p.out, row, i, activated(p.activation, v, load_element(p.up, row, i)));
      return;
    }
    Elements x = load_wide(p.gate.data, p.gate.dtype, row * p.gate.stride + i * kWide);
    const Elements up = load_wide(p.up.data, p.up.dtype, row * p.up.stride + i * kWide);
    LATHE_UNROLL
    for (int j = 0; j < kWide; ++j) x.v[j] = activated(p.activation, x.v[j], up.v[j]);
    store_wide(p.out.data, p.out.dtype, row * p.out.stride + i * kWide, x);
  } else {
    const std::int64_t row = blockIdx.x;
    for (std::int64_t first = 0; first < p.cols; first += kRowThreads) {
      const std::int64_t col = first + threadIdx.x;
      float v = 0;
      if (col < p.cols) {
        v = activated(p.activation, load_element(p.gate, row, 2 * col),
                      load_element(p.gate, row, 2 * col + 1));
      }
      sync_block();
      if (col < p.cols) store_element(p.out, row, col, v);
      sync_block();
    }
  }
}

// A block per row.
static __global__ void __launch_bounds__(kRowThreads)
    find_non_finite_kernel(const __grid_constant__ NonFiniteParams p) {
  __shared__ std::uint32_t found[kRowThreads / 32];
  let_next_begin();
  wait_for_previous();
  const std::int64_t row = blockIdx.x;
  bool mine = false;
  for (std::int64_t i = threadIdx.x; i < p.cols; i += kRowThreads) {
    constexpr std::uint32_t kExponent = 0x7f800000u;
    mine |= (float_to_bits(load_element(p.x, row, i)) & kExponent) == kExponent;
  }
  const std::uint32_t lanes = warp_ballot(mine);
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = lanes;
  sync_block();
  if (threadIdx.x == 0) {
    std::uint32_t any = 0;
    for (const std::uint32_t of_warp : found) any |= of_warp;
    std::int32_t* first = p.first + (p.of != nullptr ? p.of[row] : row);
    if (any != 0 && *first > p.layer) *first = p.layer;
  }
}

}  // namespace lathe::cuda
