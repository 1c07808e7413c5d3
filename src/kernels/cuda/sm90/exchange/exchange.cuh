// What all exchanges share: the rank's place in its sequence of calls, waiting, leaving, and sums
// of rows.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/common/peers.cuh"
#include "kernels/cuda/sm90/exchange/exchange.h"

namespace lathe::cuda {

/// Values that only kernels of this GPU change, from L2: an early launch may have begun before the
/// last one stored them.
__device__ __forceinline__ ExchangeState load_state(const ExchangePeers& p) {
  const auto* from = reinterpret_cast<const uint4*>(p.state);
  const uint4 a = load_system(from), b = load_system(from + 1);
  ExchangeState s;
  s.call = a.x | static_cast<std::uint64_t>(a.y) << 32;
  s.plane = a.z;
  s.used = a.w;
  s.gave_up = b.y;
  return s;
}

/// Counts the rounds of a thread's waits.
struct Wait {
  const ExchangePeers& peers;
  std::uint64_t call;
  std::uint64_t began = 0;
  std::uint32_t rounds = 0;

  /// Call in every round. True: stop waiting, and skip what depends on it.
  __device__ __forceinline__ bool gives_up() {
    pause_poll();
    if (++rounds % kPollRounds != 0) return false;
    GaveUp why = GaveUp::no;
    if (load_system(&peers.control->abort) != 0) {
      why = GaveUp::aborted;
    } else {
      const std::uint64_t now = global_nanoseconds();
      if (began == 0) began = now;
      if (now - began > load_system(&peers.control->limit_nanoseconds)) why = GaveUp::too_late;
    }
    if (why == GaveUp::no) return false;
    store_system(&peers.state->gave_up, 1u);
    store_system(&peers.control->call, call);
    store_system(reinterpret_cast<std::uint32_t*>(&peers.control->gave_up),
                 static_cast<std::uint32_t>(why));
    return true;
  }
};

/// Every block calls this once, after all of its threads have read the state. The last block begins
/// the next call. `used`: words of this call's plane that hold data; kept if the call pushed none.
__device__ __forceinline__ void leave(const ExchangePeers& p, const ExchangeState& now, bool pushed,
                                      std::uint32_t used) {
  if (threadIdx.x != 0) return;
  if (atomicAdd(&p.state->left, 1u) + 1 != gridDim.x) return;
  p.state->left = 0;
  p.state->call = now.call + 1;
  if (!pushed) return;
  p.state->plane = now.plane + 1 == kPlanes ? 0 : now.plane + 1;
  p.state->used = used;
}

/// Two bf16, with +0 for -0.
__device__ __forceinline__ std::uint32_t without_negative_zero(std::uint32_t v) {
  if ((v & 0xffffu) == 0x8000u) v &= 0xffff0000u;
  if ((v & 0xffff0000u) == 0x80000000u) v &= 0x0000ffffu;
  return v;
}
__device__ __forceinline__ uint4 without_negative_zero(uint4 v) {
  return {without_negative_zero(v.x), without_negative_zero(v.y), without_negative_zero(v.z),
          without_negative_zero(v.w)};
}
/// 0 where neither half of the word is kUnsent's.
__device__ __forceinline__ std::uint32_t unsent_halves(std::uint32_t v) {
  const std::uint32_t rest = v ^ kUnsent;
  return (rest - 0x00010001u) & ~rest & 0x80008000u;
}
__device__ __forceinline__ bool has_arrived(uint4 v) {
  return (unsent_halves(v.x) | unsent_halves(v.y) | unsent_halves(v.z) | unsent_halves(v.w)) == 0;
}

__device__ __forceinline__ uint4 load_word(const uint4* from, bool of_peer) {
  return of_peer ? load_system(from) : *from;
}
/// Eight partials as bf16: word `word` of a row at `row`.
__device__ __forceinline__ uint4 load_partial(const std::byte* row, DType dtype, std::int64_t word,
                                              bool of_peer = false) {
  uint4 out;
  if (dtype == DType::bf16) {
    out = load_word(reinterpret_cast<const uint4*>(row) + word, of_peer);
  } else {
    const auto* from = reinterpret_cast<const uint4*>(row) + 2 * word;
    const uint4 a = load_word(from, of_peer), b = load_word(from + 1, of_peer);
    out = {convert_bf16x2(bits_to_float(a.x), bits_to_float(a.y)),
           convert_bf16x2(bits_to_float(a.z), bits_to_float(a.w)),
           convert_bf16x2(bits_to_float(b.x), bits_to_float(b.y)),
           convert_bf16x2(bits_to_float(b.z), bits_to_float(b.w))};
  }
  return without_negative_zero(out);
}
__device__ __forceinline__ std::int64_t row_bytes(const DeviceRows& rows) {
  return rows.stride * (rows.dtype == DType::f32 ? 4 : 2);
}

struct Eight {
  float v[8];
};
__device__ __forceinline__ Eight zeros() { return {}; }
__device__ __forceinline__ Eight load_eight(const float* from) {
  const float4 a = reinterpret_cast<const float4*>(from)[0];
  const float4 b = reinterpret_cast<const float4*>(from)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
__device__ __forceinline__ void store_eight(float* to, const Eight& e) {
  reinterpret_cast<float4*>(to)[0] = {e.v[0], e.v[1], e.v[2], e.v[3]};
  reinterpret_cast<float4*>(to)[1] = {e.v[4], e.v[5], e.v[6], e.v[7]};
}
__device__ __forceinline__ void add_word(Eight& sum, uint4 word) {
  const std::uint32_t pairs[4] = {word.x, word.y, word.z, word.w};
  LATHE_UNROLL
  for (int i = 0; i < 4; ++i) {
    sum.v[2 * i] += bits_to_float(pairs[i] << 16);
    sum.v[2 * i + 1] += bits_to_float(pairs[i] & 0xffff0000u);
  }
}

/// The words of a row that a thread has: threadIdx.x, + blockDim.x, ..
template <int kWords>
struct RowPart {
  Eight v[kWords];
};

/// Groups of 32 words of the widest row.
inline constexpr int kRowGroups = kExchangeCols / 256;

/// Adds a sum to x and computes h, a row at a time.
template <int kWords>
struct RowEnd {
  const SumParams& p;
  int words;
  float* room;  // [kRowGroups] shared
  // Loaded ahead of the wait for the peers, where there are registers for it.
  static constexpr bool kAhead = kWords == 1;
  Eight ahead;

  __device__ __forceinline__ explicit RowEnd(const SumParams& params, float* shared)
      : p(params), words(static_cast<int>(exchange_words(params.cols))), room(shared) {
    if constexpr (kAhead) ahead = weight(0);
  }
  __device__ __forceinline__ Eight weight(int w) const {
    if (p.h.data != nullptr && p.weight != nullptr && has(w)) {
      return load_eight(p.weight + 8 * word(w));
    }
    return {{1, 1, 1, 1, 1, 1, 1, 1}};
  }
  __device__ __forceinline__ int word(int w) const {
    return static_cast<int>(threadIdx.x + static_cast<unsigned>(w) * blockDim.x);
  }
  __device__ __forceinline__ bool has(int w) const { return word(w) < words; }
  __device__ __forceinline__ float* x(std::int64_t row, int w) const {
    return reinterpret_cast<float*>(p.x.data) + row * p.x.stride + 8 * word(w);
  }
  __device__ __forceinline__ uint4* h(std::int64_t row, int w) const {
    return reinterpret_cast<uint4*>(p.h.data) + row * (p.h.stride / 8) + word(w);
  }
  /// x before the sum.
  __device__ __forceinline__ RowPart<kWords> before(std::int64_t row) const {
    RowPart<kWords> out;
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      out.v[w] = has(w) && p.add ? load_eight(x(row, w)) : zeros();
    }
    return out;
  }
  /// `sum`: what this thread's words have after the addition. Stores x and passes each word of h to
  /// store(w, word). All threads of the block call it.
  template <class Store>
  __device__ __forceinline__ void finish(std::int64_t row, const RowPart<kWords>& sum,
                                         Store store) const {
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      if (has(w)) store_eight(x(row, w), sum.v[w]);
    }
    if (p.h.data == nullptr) return;
    Squares squares;
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      squares.v[w] = 0;
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) squares.v[w] += sum.v[w].v[i] * sum.v[w].v[i];
    }
    const float factor = 1 / sqrtf(sum_block(squares) / static_cast<float>(p.cols) + p.eps);
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      if (!has(w)) continue;
      Eight by;
      if constexpr (kAhead) {
        by = ahead;
      } else {
        by = weight(w);
      }
      float v[8];
      LATHE_UNROLL
      for (int i = 0; i < 8; ++i) v[i] = sum.v[w].v[i] * factor * by.v[i];
      store(w,
            without_negative_zero(uint4{convert_bf16x2(v[0], v[1]), convert_bf16x2(v[2], v[3]),
                                        convert_bf16x2(v[4], v[5]), convert_bf16x2(v[6], v[7])}));
    }
  }
  struct Squares {
    float v[kWords];
  };
  /// Groups of 32 words as a tree, then the groups: the order depends on the width of the rows
  /// alone, not on how many words a thread has. A barrier must separate two calls.
  __device__ __forceinline__ float sum_block(Squares of) const {
    const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
    const int warps = static_cast<int>(blockDim.x / 32);
    LATHE_UNROLL
    for (int w = 0; w < kWords; ++w) {
      LATHE_UNROLL
      for (int d = 16; d > 0; d /= 2) of.v[w] += shuffle_xor(of.v[w], d);
      if (lane == 0) room[w * warps + warp] = of.v[w];
    }
    sync_block();
    const int groups = kWords * warps;
    float v = lane < groups ? room[lane] : 0.0f;
    if constexpr (kWords > 1) {
      if (lane + 32 < groups) v += room[lane + 32];
    }
    LATHE_UNROLL
    for (int d = 16; d > 0; d /= 2) v += shuffle_xor(v, d);
    return v;
  }
};

}  // namespace lathe::cuda
