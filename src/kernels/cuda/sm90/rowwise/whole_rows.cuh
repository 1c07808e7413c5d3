// Queries and keys of DeepSeek V4's attention in one pass (whole_rows.h). A warp processes a row of
// k, or neighbouring heads of q. Products and sums are rounded one by one, in the order of the
// separate kernels (norm.cuh, rotate_chunk.cuh, encode.cuh), so the bits are equal.
#pragma once

#include "kernels/cuda/sm90/rowwise/latent_rows.cuh"
#include "kernels/cuda/sm90/rowwise/whole_rows.h"

namespace lathe::cuda {

inline constexpr int kWholeThreads = 128;
inline constexpr int kWholeHeads = 2;  // heads per warp

/// Of lanes 16 to 31, which have the rotary columns in their last four.
class WholeRotation {
 public:
  static_assert(kWholeColumns == kLatentColumns && kWholeRotary == 4 * 16);

  __device__ __forceinline__ void load(const WholeRowsParams& p, std::int32_t position, int lane) {
    rotation_.load(p.table, p.interleaved, position, lane);
  }
  __device__ __forceinline__ void apply(bool interleaved, int lane, LatentOfWarp& x) const {
    float v[4];
    LATHE_UNROLL
    for (int j = 0; j < 4; ++j) v[j] = x.v[LatentOfWarp::kTiles - 1][j];
    rotation_.apply(interleaved, v);
    LATHE_UNROLL
    for (int j = 0; j < 4; ++j) {
      if (lane >= 16) x.v[LatentOfWarp::kTiles - 1][j] = v[j];
    }
  }

 private:
  HeadRotation<4, 16> rotation_;
};

__device__ __forceinline__ float norm_factor(const LatentOfWarp& x, float eps) {
  return 1 / sqrtf(x.sum_of_squares() / kWholeColumns + eps);
}

/// A half of the warp has a tile in each quarter of the row, so the upper half's last is the rotary
/// part.
template <bool kCodes>
__device__ __forceinline__ void store_whole_key(const WholeRowsParams& p, const Place& place,
                                                const LatentOfWarp& x, int lane) {
  static_assert(kWholeTile == 4 * 16);
  const Address to = place.part(p.nope.start, p.nope.step);
  std::uint32_t exponents[2] = {0, 0};
  LATHE_UNROLL
  for (int u = 0; u < LatentOfWarp::kTiles; ++u) {
    const int col = 128 * u + 4 * lane;
    TileScale tile = {};
    if constexpr (kCodes) tile = pow2_e4m3_scale(largest_finite_of_lanes<16>(x.v[u]));
    if (col >= kWholeColumns - kWholeRotary) {
      store_bf16_neighbours(place.part(p.rope.start, p.rope.step) + 8 * (lane - 16), x.v[u]);
    } else if constexpr (kCodes) {
      store_e4m3_neighbours(to + col, x.v[u], tile.inverse);
      exponents[u / 2] |= float_to_bits(tile.scale) >> 23 << (u % 2 * 16 + lane / 16 * 8);
    } else {
      store_bf16_neighbours(to + 2 * col, x.v[u]);
    }
  }
  if constexpr (kCodes) {
    LATHE_UNROLL
    for (std::uint32_t& word : exponents) word |= shuffle_xor(word, 16);
    if (lane != 0) return;
    store_global(place.part(p.scale_start, p.scale_step), uint2{exponents[0], exponents[1]});
  }
}

template <bool kCodes>
__device__ __forceinline__ void write_whole_key(const WholeRowsParams& p, std::int64_t row,
                                                int lane) {
  LatentOfWarp x;
  x.load(p.k + row * p.k_stride, lane);
  const std::int32_t position = p.positions[row];
  const Place place = place_of(p.pages, p.slots[row]);
  if (place.hole || static_cast<std::uint32_t>(position) >= p.table_positions) return;
  WholeRotation rotation;
  rotation.load(p, position, lane);
  x.scale(norm_factor(x, p.eps), p.norm, lane);
  rotation.apply(p.interleaved, lane, x);
  store_whole_key<kCodes>(p, place, x, lane);
}

/// kWholeHeads heads of one row.
__device__ __forceinline__ void round_whole_heads(const WholeRowsParams& p, std::uint32_t group,
                                                  int lane) {
  const std::uint32_t row = p.groups_of_row(group);
  if (row >= p.rows) return;
  const auto first =
      static_cast<std::int32_t>((group - row * p.groups_of_row.divisor) * kWholeHeads);
  const std::int32_t position = p.positions[row];
  const float* const q = p.q + row * p.q_stride;
  LatentOfWarp x[kWholeHeads];
  LATHE_UNROLL
  for (int n = 0; n < kWholeHeads; ++n) {
    const std::int32_t head = first + n < p.heads ? first + n : p.heads - 1;
    x[n].load(q + head * kWholeColumns, lane);
  }
  const bool rotates = static_cast<std::uint32_t>(position) < p.table_positions;
  WholeRotation rotation;
  if (rotates) rotation.load(p, position, lane);
  LATHE_UNROLL
  for (int n = 0; n < kWholeHeads; ++n) {
    if (first + n >= p.heads) return;
    const float factor = norm_factor(x[n], p.eps);
    LATHE_UNROLL
    for (float(&v)[4] : x[n].v) {
      LATHE_UNROLL
      for (float& e : v) e *= factor;
    }
    if (rotates) rotation.apply(p.interleaved, lane, x[n]);
    const Address to =
        address_of(p.q_out + row * p.q_out_stride + std::int64_t{first + n} * kWholeColumns);
    LATHE_UNROLL
    for (int u = 0; u < LatentOfWarp::kTiles; ++u) {
      store_bf16_neighbours(to + 256 * u + 8 * lane, x[n].v[u]);
    }
  }
}

/// kCodes: WholeRowsParams::codes.
template <bool kCodes>
static __global__ void __launch_bounds__(kWholeThreads)
    whole_rows_kernel(const __grid_constant__ WholeRowsParams p) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // From one lane, so that the compiler knows that it is the warp's.
  const std::uint32_t warp = blockIdx.x * (kWholeThreads / 32) + shuffle(threadIdx.x / 32, 0);
  const auto rows = static_cast<std::uint32_t>(p.rows);
  if (warp < rows) {
    write_whole_key<kCodes>(p, warp, lane);
  } else {
    round_whole_heads(p, warp - rows, lane);
  }
}

}  // namespace lathe::cuda
