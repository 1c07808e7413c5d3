// Keeps NaN and infinity of a masked key away from the rows that do not see it. A key is called
// wild here if one of its values is not finite.
//
// P of a masked key is 0, but 0 x NaN is NaN, and a key that one row of an M block does not see may
// be visible to another row. So the values of such a wild key become zeros for all rows, and the
// rows that see it get a NaN score, which makes their whole output NaN. Keys that all rows of the
// block see need nothing.
//
// A latent key contains its value, so a wild key has no finite score in any M row. Scores tell
// whether there may be one, without a load.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/attention/mask.cuh"

namespace lathe::cuda {

/// Returns v, opaque to the compiler. Addresses that follow from it are then computed here, in code
/// that rarely runs, and not before the loop, where they would occupy registers.
__device__ inline int opaque(int v) {
  asm volatile("" : "+r"(v));
  return v;
}

__device__ inline float not_a_number() { return bits_to_float(0x7fffffffu); }

/// Whether v is infinite or NaN.
__device__ inline bool is_wild(float v) { return (float_to_bits(v) & 0x7f800000u) == 0x7f800000u; }
/// Whether one of eight bf16 is infinite or NaN.
__device__ inline bool is_wild_bf16(const uint4& v) {
  constexpr std::uint32_t kMagnitudes = 0x7fff7fffu;
  const std::uint32_t most = max_u16x2(max_u16x2(v.x & kMagnitudes, v.y & kMagnitudes),
                                       max_u16x2(v.z & kMagnitudes, v.w & kMagnitudes));
  return (most & 0xffffu) >= 0x7f80u || most >> 16 >= 0x7f80u;
}
/// Whether one of sixteen e4m3 is NaN.
__device__ inline bool is_wild_e4m3(const uint4& v) {
  const auto ends = [](std::uint32_t codes) { return (codes & 0x7f7f7f7fu) + 0x01010101u; };
  return ((ends(v.x) | ends(v.y) | ends(v.z) | ends(v.w)) & 0x80808080u) != 0;
}
template <bool kFp8>
__device__ inline bool is_wild(const uint4& v) {
  if constexpr (kFp8) return is_wild_e4m3(v);
  return is_wild_bf16(v);
}

/// The values of keys in kTiles tiles of 128-byte rows, kStride bytes apart. All bytes of a row
/// belong to one key, so the swizzle does not matter. A lane does its share of a key.
template <bool kFp8, int kTiles, int kStride>
struct ValueRows {
  static constexpr int kChunks = 8 * kTiles;  // of a key, 16 bytes each
  std::uint32_t tiles;

  __device__ std::uint32_t chunk(int key, int c) const {
    return tiles + static_cast<std::uint32_t>(c / 8 * kStride + key * 128 + c % 8 * 16);
  }
  __device__ bool wild_chunk(int key, int c) const {
    return is_wild<kFp8>(load_shared_u128(chunk(key, c)));
  }
  __device__ bool wild(int key, int lane) const {
    bool any = false;
    for (int c = lane; c < kChunks; c += 32) any |= wild_chunk(key, c);
    return any;
  }
  __device__ void clear(int key, int lane) const {
    for (int c = lane; c < kChunks; c += 32) store_shared(chunk(key, c), 0, 0, 0, 0);
  }
};

/// Clears the values of a warp's keys; bit i of `keys` is key 16 warp + i.
template <class Rows>
__device__ __forceinline__ void clear_keys(const Rows& rows, std::uint32_t keys, int warp,
                                           int lane) {
  sync_warp();  // stores of other lanes come before these
  LATHE_ROLLED
  for (; keys != 0; keys &= keys - 1) {
    rows.clear(warp * 16 + count_bits((keys & (0u - keys)) - 1), lane);
  }
  fence_async_proxy();
}
/// Which of a warp's keys (bits as in clear_keys()) are wild.
template <class Rows>
__device__ __forceinline__ std::uint32_t wild_of(const Rows& rows, std::uint32_t keys, int warp,
                                                 int lane) {
  std::uint32_t wild = 0;
  LATHE_ROLLED
  for (; keys != 0; keys &= keys - 1) {
    const std::uint32_t bit = keys & (0u - keys);
    if (warp_any(rows.wild(warp * 16 + count_bits(bit - 1), lane))) wild |= bit;
  }
  return wild;
}

/// For M rows on M, by the 128 threads of a warpgroup: clears the bits of a tile's wild keys in
/// `mask`, in shared memory, and, with kClear, their values. Returns the keys that lost their bit.
/// number: of a named barrier. Two lanes look at each key, without a loop over keys: registers are
/// scarce.
template <bool kClear, class Rows>
__device__ __forceinline__ std::uint64_t drop_wild_keys(std::uint32_t mask, const Rows& rows,
                                                        int number, int warp, int lane) {
  const std::uint64_t before = load_shared_u64(mask);
  group_sync(number, 128);
  warp = opaque(warp), lane = opaque(lane);
  const int key = warp * 16 + lane % 16;
  bool any = false;
  LATHE_ROLLED
  for (int c = lane / 16; c < Rows::kChunks; c += 2) any |= rows.wild_chunk(key, c);
  const std::uint32_t found = warp_ballot(any), wild = (found | found >> 16) & 0xffffu;
  if constexpr (kClear) clear_keys(rows, wild, warp, lane);
  if (lane == 0) {
    const std::uint32_t at = mask + static_cast<std::uint32_t>(2 * warp);
    store_shared_u16(at, load_shared_u16(at) & ~wild);
  }
  group_sync(number, 128);
  return before & ~load_shared_u64(mask);
}

/// Bit i: whether bits 4 i to 4 i + 3 are set.
__device__ inline std::uint32_t whole_quads(std::uint32_t bits) {
  bits &= bits >> 1;
  bits = bits & bits >> 2 & 0x11111111u;
  bits = (bits | bits >> 3) & 0x03030303u;
  bits = (bits | bits >> 6) & 0x000f000fu;
  return (bits | bits >> 12) & 0xffu;
}
/// With A and B swapped: a warp's keys that have no finite score in any M row; bit i is key
/// 16 warp + i.
template <int kCount>
__device__ __forceinline__ std::uint32_t unscored_keys(const float (&d)[kCount]) {
  // The minimum drops NaN.
  float least[2] = {-kNoKey, -kNoKey};
  LATHE_UNROLL
  for (int i = 0; i < kCount; ++i) least[i / 2 % 2] = fminf(least[i / 2 % 2], fabsf(d[i]));
  return whole_quads(warp_ballot(!(least[0] < -kNoKey))) |
         whole_quads(warp_ballot(!(least[1] < -kNoKey))) << 8;
}

/// Makes the scores of these keys NaN, for M rows on M and keys on N (wgmma.cuh).
__device__ inline void poison_keys(float (&d)[32], std::uint64_t keys, int lane) {
  const auto bits = keys >> 2 * (lane & 3);
  LATHE_UNROLL
  for (int j = 0; j < 8; ++j) {
    const auto two = static_cast<std::uint32_t>(bits >> 8 * j);
    if (two & 1) d[4 * j] = d[4 * j + 2] = not_a_number();
    if (two & 2) d[4 * j + 1] = d[4 * j + 3] = not_a_number();
  }
}
/// The same with A and B swapped; bit i is key 16 warp + i.
template <int kCount>
__device__ inline void poison_keys_swapped(float (&d)[kCount], std::uint32_t keys, int lane) {
  const std::uint32_t bits = keys >> lane / 4;
  LATHE_UNROLL
  for (int j = 0; j < kCount / 4; ++j) {
    if (bits & 1) d[4 * j] = d[4 * j + 1] = not_a_number();
    if (bits & 256) d[4 * j + 2] = d[4 * j + 3] = not_a_number();
  }
}

/// With A and B swapped, in a tile with keys that some M row does not see: makes the scores of a
/// warp's wild keys NaN, and clears their values. Call it before scores are masked.
template <class Rows, int kCount>
__device__ __forceinline__ void drop_wild_keys_swapped(float (&d)[kCount], const Rows& rows,
                                                       int warp, int lane) {
  std::uint32_t keys = unscored_keys(d);
  if (!seldom(keys != 0)) return;
  warp = opaque(warp), lane = opaque(lane);
  keys = wild_of(rows, keys, warp, lane);
  if (keys == 0) return;
  poison_keys_swapped(d, keys, lane);
  clear_keys(rows, keys, warp, lane);
}

}  // namespace lathe::cuda
