// m64 on fp8: the value warpgroups, which accumulate PV over 256 dimensions each.
#pragma once

#include "kernels/cuda/common/wgmma_rows.cuh"
#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_config.cuh"
#include "kernels/cuda/sm90/latent/math/mask.cuh"

namespace lathe::cuda {

/// A thread accumulates rows lane / 4 and lane / 4 + 8 of its warp's 16 dimensions in each tile of
/// 64, for M rows 8 j + 2 (lane % 4) + i, which are `m_row(j, i)`. Functions are force-inlined:
/// wgmma in flight cannot cross a call.
template <class Format>
struct M64Fp8Values {
  using W = M64Fp8<Format>;
  using Ring = typename W::Ring;
  using Operand = std::uint32_t[2][4];
  static constexpr int kOperands = 2;  // register sets of left operands
  static constexpr int kSame = LatentRows<Format>::kSame;

  const LatentParams& p;
  const M64Fp8Shared<Format>& s;
  int group, warp, lane;
  float acc[4][32];  // of 64 value dimensions each
  Operand operands[kOperands];

  __device__ M64Fp8Values(const LatentParams& params, const M64Fp8Shared<Format>& shared, int which,
                          int t)
      : p(params), s(shared), group(which), warp(t / 32), lane(t % 32) {}

  __device__ int thread() const { return warp * 32 + lane; }
  /// Keeps addresses from being computed before the tiles and spilled.
  __device__ void forget() { asm volatile("" : "+r"(lane), "+r"(warp)); }
  __device__ int m_row(int j, int i) const { return 8 * j + 2 * (lane & 3) + i; }
  __device__ void pin_acc() {
    LATHE_UNROLL
    for (int m = 0; m < 4; ++m) wgmma_pin(acc[m]);
  }

  /// Clears values of masked keys, which may not be finite (nonfinite.cuh).
  __device__ __forceinline__ void clear_masked(unsigned n) const {
    const Fp8ValueRows<Format> rows{s.ring().keys(n), s.scales(n)};
    const std::uint32_t seen =
        load_shared_u16(s.ring().mask(n) + static_cast<std::uint32_t>(2 * warp));
    clear_keys(rows, ~seen & 0xffffu, warp, lane);
    group_sync(W::kFirstValueGroup + group, 128);
  }
  /// Rescales the accumulator to tile n's row maxes. No wgmma may be in flight.
  __device__ __forceinline__ void rescale(unsigned n) {
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float2 f = load_float2(s.factors(n) + 4u * static_cast<unsigned>(m_row(j, 0)));
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        acc[m][4 * j] *= f.x;
        acc[m][4 * j + 1] *= f.y;
        acc[m][4 * j + 2] *= f.x;
        acc[m][4 * j + 3] *= f.y;
      }
    }
  }

  /// O^T += V^T P^T of tile n; frees its keys and P.
  __device__ __forceinline__ void add(unsigned n, unsigned end) {
    forget();
    if (group > 1) __builtin_unreachable();  // only the last tile of values can be bf16
    const ValueOperand<Format> values{s.ring().keys(n), s.scales(n), warp, lane};
    // Words are loaded two operands ahead, scales one block ahead.
    std::uint32_t words[2][4], scales[2][4] = {};
    barrier_wait(s.ring().full(n), Ring::parity(n));
    values.load(4 * group, 0, words[0]);
    values.load(4 * group + 1, 0, words[1]);
    barrier_wait(s.p_full(n), Ring::parity(n));
    const auto choose = [&](int c) {
      if (c < 8 && c % kSame == 0) {
        values.choose(4 * group + c % 4, c / 4, scales[c / kSame & 1]);
      }
    };
    if (seldom(load_shared_u32(s.risen(n)) == n + 1)) {
      rescale(n);
      if (load_shared_u32(s.wild(n)) == n + 1) {
        clear_masked(n);
        values.load(4 * group, 0, words[0]);
        values.load(4 * group + 1, 0, words[1]);
      }
    }
    choose(0);
    const std::uint64_t p_tile = tile_descriptor(s.p_tile(n), 1024);
    LATHE_UNROLL
    for (int c = 0; c < 8; ++c) {
      const int half = c / 4, m = c % 4;
      // The rest waits until the next tile's S is done: its softmax uses other units of the SM.
      if (c == W::kEarly) {
        const unsigned last = n + 1 < end ? n + 1 : n;
        barrier_wait(s.scored(last), Ring::parity(last));
      }
      Operand& a = operands[c % kOperands];
      if (c % kSame == 0) choose(c + kSame);
      values.make(4 * group + m, half, words[c & 1], scales[c / kSame & 1], a);
      if (c < 6) values.load(4 * group + (c + 2) % 4, (c + 2) / 4, words[c & 1]);
      multiply_chunk<false>(acc[m], a, p_tile + static_cast<unsigned>(half * 4), true);
      // ptxas serializes wgmma after a wait for 0.
      if (c >= kOperands - 1) wgmma_wait<kOperands - 1>();
    }
    wgmma_wait<0>();
    pin_acc();
    barrier_arrive(s.ring().empty(n, 0));
    barrier_arrive(s.ring().empty(n, 1));
  }

  /// Reorders rows of a bf16 tile of values to the order of fp8 ones: row g becomes dimension 2 g,
  /// row g + 8 dimension 2 g + 1.
  __device__ __forceinline__ void order(float (&tile)[32]) const {
    // Dimensions 0 to 7 are in the first row of lanes g: lanes 0 to 15 read those, the others the
    // second row.
    const int from = (lane >> 2) * 2 % 8 * 4 + (lane & 3);
    const bool second = lane >= 16;
    LATHE_UNROLL
    for (int j = 0; j < 8; ++j) {
      LATHE_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& a = tile[4 * j + e];
        float& b = tile[4 * j + 2 + e];
        const auto low = static_cast<std::uint32_t>(from);
        const float a0 = shuffle(a, low), b0 = shuffle(b, low);
        const float a1 = shuffle(a, low + 4), b1 = shuffle(b, low + 4);
        a = second ? b0 : a0;
        b = second ? b1 : a1;
      }
    }
  }

  /// One warp per warpgroup, 32 M rows: the factors of their outputs, and where the outputs begin.
  __device__ __forceinline__ void settle(const LatentWorkInfo& item) const {
    const int own = group * 32 + lane;
    const auto at = 4u * static_cast<unsigned>(own);
    const std::int32_t l = item.first + own;
    const float sum = load_float(s.outputs() + at);
    const float lse2 = sum == 0 ? kNoKey : load_float(s.last_row_maxes() + at) + log2_fast(sum);
    float factor = sum == 0 ? 0.f : (item.number < 0 ? p.value_scale : 1.f) / sum;
    std::int64_t place = -1;
    if (l < item.m_rows) {
      const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(l)));
      const std::int32_t head = l - r * p.heads;
      place = (item.row + r) * p.out_stride + std::int64_t{head} * W::kValues;
      if (item.number >= 0) {
        p.partial_lse[std::int64_t{item.number} * (p.m_blocks * W::kMRows) + l] = lse2;
      } else {
        if (p.sink != nullptr) factor *= sink_factor(p.sink[head], lse2);
        if (p.lse != nullptr)
          p.lse[(item.row + r) * p.lse_stride + head] = stored_lse(p.lse_form, lse2);
      }
    }
    store_float(s.outputs() + at, factor);
    store_shared_u64(s.places() + 2 * at, static_cast<std::uint64_t>(place));
  }

  __device__ __forceinline__ void finish(const LatentWorkInfo& item) {
    forget();
    if (warp == 0) settle(item);
    group_sync(W::kValueGroups, 256);
    float last[32];
    LATHE_UNROLL
    for (int i = 0; i < 32; ++i) last[i] = acc[3][i];
    if constexpr (Format::kFp8 < kValueTiles) {
      if (group == 1) order(last);
    }
    if (item.number >= 0) {
      uint2* to = partial_chunks<PartialLayout::swapped>(p, W::kMRows, item.number,
                                                         item.first / W::kMRows) +
                  group * 4096 + thread();
      LATHE_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int j = i / 2, e = i % 2;
        const float factor = load_float(s.outputs() + 4u * static_cast<unsigned>(m_row(j, e)));
        LATHE_UNROLL
        for (int m = 0; m < 4; m += 2) {
          const float(&a)[32] = acc[m], (&b)[32] = m == 2 ? last : acc[m + 1];
          to[(m * 8 + i) * 128] = f16_chunk(a[4 * j + e] * factor, a[4 * j + 2 + e] * factor,
                                            b[4 * j + e] * factor, b[4 * j + 2 + e] * factor);
        }
      }
      return;
    }
    LATHE_UNROLL
    for (int i = 0; i < 16; ++i) {
      const int j = i / 2, e = i % 2;
      const auto at = static_cast<std::uint32_t>(m_row(j, e));
      const auto place = static_cast<std::int64_t>(load_shared_u64(s.places() + 8 * at));
      if (place < 0) continue;
      const float factor = load_float(s.outputs() + 4 * at);
      std::uint16_t* to = p.out + place + group * 256 + warp * 16 + lane / 4 * 2;
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        const float(&a)[32] = m == 3 ? last : acc[m];
        *reinterpret_cast<std::uint32_t*>(to + 64 * m) =
            pack_bf16(a[4 * j + e] * factor, a[4 * j + 2 + e] * factor);
      }
    }
  }

  __device__ __forceinline__ void run() {
    // Between items only the address of the work item's info stays in a register.
    for (std::uint32_t info = s.info();; info = s.info() + s.other_info() - info) {
      barrier_wait(s.q_full(), info != s.info());
      const LatentWorkInfo item = LatentWorkInfo::load(info);
      if (item.tiles == 0) return;
      barrier_arrive(s.q_empty());
      LATHE_UNROLL
      for (int m = 0; m < 4; ++m) {
        LATHE_UNROLL
        for (int i = 0; i < 32; ++i) acc[m][i] = 0;
      }
      unsigned n = static_cast<unsigned>(item.tile);
      LATHE_ROLLED
      for (const unsigned end = n + static_cast<unsigned>(item.tiles); n < end; ++n) add(n, end);
      barrier_wait(s.outputs_full(), info != s.info());
      finish(LatentWorkInfo::load(info));
      barrier_arrive(s.outputs_empty());
    }
  }
};

}  // namespace lathe::cuda
