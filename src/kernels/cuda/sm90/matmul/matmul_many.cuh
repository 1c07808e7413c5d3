// A consumer warpgroup of e4m3 weights with scales of blocks by many e4m3 tokens.
//
//   work tile of a block: 128 or 256 tokens (M) x 128 weight rows (N)
//     warpgroup 0: tokens 0 to 63, and 128 to 191
//     warpgroup 1: tokens 64 to 127, and 192 to 255
//   or, with tokens shared (MatmulE4m3Shared): 64 tokens x 32 to 256 rows, of which each warpgroup
//   has its own
//
// A chunk of 128 columns is summed by wgmma, then scaled and added in f32 (matmul_e4m3.cuh). All
// weight rows of a tile have one scale in a chunk, or two in a gated GEMM, and a thread has two
// tokens of each wgmma, so four multiplications make the factors of its 64 sums. The sums and their
// order are those of MatmulE4m3.
#pragma once

#include "kernels/cuda/common/activated.cuh"
#include "kernels/cuda/common/out_boxes.cuh"
#include "kernels/cuda/common/wgmma_wide.cuh"
#include "kernels/cuda/sm90/matmul/matmul_kept.cuh"
#include "kernels/cuda/sm90/matmul/matmul_ring.cuh"
#include "kernels/cuda/sm90/matmul/matmul_scales.cuh"

namespace lathe::cuda {

/// to[0] += a and to[1] += b, as add_global() does; to is at a multiple of 8 bytes.
__device__ inline void add_global_pair(float* to, float a, float b) {
#ifdef __CUDACC__
  asm volatile(
      "red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
      "f"(a), "f"(b)
      : "memory");
#else
  to[0] += a;
  to[1] += b;
#endif
}

/// A consumer warpgroup with tokens on M.
template <class T>
struct MatmulManyConsumer {
  static constexpr bool kSharesTokens = T::kSharers > 0;
  // wgmmas of 64 tokens, one after the other
  static constexpr int kTurns = kSharesTokens ? 1 : T::kTokens / 128;
  static constexpr int kRows = kSharesTokens ? T::kTileRows / T::kWarpgroups : 128;
  static constexpr int kBlocks = kRows / 8;  // of 8 weight rows
  static constexpr int kValues = 4 * kBlocks;
  // With tokens shared: the next chunk is multiplied while a chunk's sum is scaled and added.
  static constexpr bool kAhead = kSharesTokens && T::kWarpgroups < 4;
  // Boxes of 16 tokens x 64 rows in bf16 or 32 in f32, for which a warp has room.
  static constexpr int kBoxBytes = kMatmulManyOutTokens * 128;
  static constexpr int kRoom = T::kOutBytes / (T::kConsumers / 32) / kBoxBytes;

  const MatmulParams& p;
  const MatmulMaps& maps;
  const MatmulShared<T>& s;
  MatmulWorkList<T> list;
  int group, warp, lane;
  MatmulStage<T> stage;
  MatmulWarpScales scales;  // of kSharesTokens
  // [turn][4 j + 2 h + i]: token token_at(turn, h) x weight row 8 j + 2 (lane % 4) + i
  float acc[kTurns][kValues];

  __device__ MatmulManyConsumer(const MatmulParams& params, const MatmulMaps& tensor_maps,
                                const MatmulShared<T>& shared, int thread)
      : p(params),
        maps(tensor_maps),
        s(shared),
        list(params, shared),
        group(thread / 128),
        warp(thread % 128 / 32),
        lane(thread % 32) {}

  /// First token of a turn within the tile.
  __device__ int turn_token(int turn) const { return kSharesTokens ? 0 : 128 * turn + 64 * group; }
  /// First weight row of the warpgroup.
  __device__ std::int32_t first_row(const MatmulWork& w) const {
    return kSharesTokens ? w.row + kRows * group : w.row;
  }
  /// The thread's tokens within the tile, h 0 and 1.
  __device__ int token_at(int turn, int h) const {
    return turn_token(turn) + 16 * warp + 8 * h + lane / 4;
  }
  __device__ void release(std::uint32_t empty) const {
    if (lane == 0) list.release(empty);
  }

  __device__ MatmulRing<T> ring() const {
    return {s, s.weights(0) + address(kSharesTokens ? 128 * kRows * group : 0),
            s.tokens(0) + address(128 * turn_token(0)), stage};
  }
  /// acc = the sum over a part of K, for the turns that have tokens.
  __device__ __forceinline__ void sum_part(const MatmulWork& w, const MatmulFactors& factors,
                                           const MatmulPart& part) {
    if (p.gate_step != 0) {
      sum_part<true>(w, factors, part);
    } else {
      sum_part<false>(w, factors, part);
    }
  }
  template <bool kGated>
  __device__ __forceinline__ void sum_part(const MatmulWork& w, const MatmulFactors& factors,
                                           const MatmulPart& part) {
    if constexpr (kSharesTokens) {
      sum_ahead<kGated>(factors, part);
    } else if (kTurns > 1 && warp_value(list.boxes(w)) <= 2) {
      sum_turns<kGated, 1>(w.token % 4, factors, part);
    } else {
      sum_turns<kGated, kTurns>(w.token % 4, factors, part);
    }
  }
  /// The same for kCount turns. The sums of the others are 0. Only a gated GEMM has odd blocks.
  template <bool kGated, int kCount>
  __device__ __forceinline__ void sum_turns(std::int32_t first_scale, const MatmulFactors& factors,
                                            const MatmulPart& part) {
    LATHE_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      LATHE_UNROLL
      for (float& v : acc[turn]) v = 0;
    }
    MatmulRing<T> ring = this->ring();
    const std::uint32_t first = s.scales(0) + address(4 * (first_scale + token_at(0, 0)));
    const std::int32_t count = warp_value(part.end - part.begin);
    float even = factors.of_block(0, part.begin);
    float odd = kGated ? factors.of_block(1, part.begin) : even;
    LATHE_ROLLED
    for (std::int32_t i = 0; i < count; ++i) {
      const std::uint32_t at = first + ring.index() * T::kScaleBytes;
      const std::int32_t next = part.begin + (i + 1 < count ? i + 1 : i);
      float next_even = even, next_odd = odd;
      ring.wait_full();
      LATHE_UNROLL
      for (int turn = 0; turn < kCount; ++turn) {
        const float low = load_float(at + address(512 * turn));
        const float high = load_float(at + address(512 * turn + 32));
        float sum[kValues];
        wgmma_fence();
        LATHE_UNROLL
        for (int k = 0; k < 4; ++k) {
          mma_m64_e4m3(sum, ring.tokens(address(turn * 128 * 128 + 32 * k)),
                       ring.weights(address(32 * k)), k > 0);
        }
        wgmma_commit();
        if (turn == 0) {
          next_even = factors.of_block(0, next);
          next_odd = kGated ? factors.of_block(1, next) : next_even;
        }
        wgmma_wait<0>();
        wgmma_pin(sum);
        if (turn + 1 == kCount) {
          release(ring.empty());
          ring.next();
        }
        add(acc[turn], sum, even, odd, low, high);
      }
      even = next_even;
      odd = next_odd;
    }
    stage = ring.stage();
  }
  /// sum_part() with tokens shared.
  template <bool kGated>
  __device__ __forceinline__ void sum_ahead(const MatmulFactors& factors, const MatmulPart& part) {
    LATHE_UNROLL
    for (float& v : acc[0]) v = 0;
    std::int32_t chunk = part.begin;
    if (part.begin >= part.end) return;
    float a[kValues];
    MatmulRing<T> ahead = ring(), ring = ahead;
    if constexpr (!kAhead) {
      LATHE_ROLLED
      for (std::int32_t left = warp_value(part.end - chunk); left > 0; --left, ++chunk) {
        multiply(ring, a);
        add_chunk<0, kGated>(ring, factors, chunk, a);
      }
      stage = ring.stage();
      return;
    }
    float b[kValues];
    multiply(ahead, a);
    ahead.next();
    LATHE_ROLLED
    for (std::int32_t left = warp_value(part.end - chunk - 1); left > 1; left -= 2, chunk += 2) {
      multiply(ahead, b);
      ahead.next();
      add_chunk<1, kGated>(ring, factors, chunk, a);
      multiply(ahead, a);
      ahead.next();
      add_chunk<1, kGated>(ring, factors, chunk + 1, b);
    }
    if (warp_value(part.end - chunk) > 1) {
      multiply(ahead, b);
      ahead.next();
      add_chunk<1, kGated>(ring, factors, chunk, a);
      add_chunk<0, kGated>(ring, factors, chunk + 1, b);
    } else {
      add_chunk<0, kGated>(ring, factors, chunk, a);
    }
    stage = ring.stage();
  }
  /// Begins the products of a stage's chunk.
  static __device__ __forceinline__ void multiply(const MatmulRing<T>& at, float (&sum)[kValues]) {
    at.wait_full();
    wgmma_fence();
    LATHE_UNROLL
    for (int k = 0; k < 4; ++k) {
      mma_m64_e4m3(sum, at.tokens(address(32 * k)), at.weights(address(32 * k)), k > 0);
    }
    wgmma_commit();
  }
  /// acc += sum times the scales of a stage's chunk, whose place is free then. Waits until kLeft
  /// chunks are being multiplied.
  template <int kLeft, bool kGated>
  __device__ __forceinline__ void add_chunk(MatmulRing<T>& at, const MatmulFactors& factors,
                                            std::int32_t chunk, float (&sum)[kValues]) {
    if (warp_value(chunk - scales.first) >= MatmulWarpScales::kChunks) {
      scales.load(factors, chunk, p.chunks, lane);
    }
    const std::uint32_t from =
        s.scales(0) + at.index() * T::kScaleBytes + address(4 * token_at(0, 0));
    const float low = load_float(from), high = load_float(from + 32);
    const float even = scales.at(0, chunk);
    const float odd = kGated ? scales.at(1, chunk) : even;
    wgmma_wait<kLeft>();
    wgmma_pin(sum);
    release(at.empty());
    at.next();
    add(acc[0], sum, even, odd, low, high);
  }
  __device__ static std::uint32_t address(int bytes) { return static_cast<std::uint32_t>(bytes); }
  /// to += sum times the factors: of even and odd blocks of 8 rows, and of the thread's two tokens.
  static __device__ __forceinline__ void add(float (&to)[kValues], const float (&sum)[kValues],
                                             float even, float odd, float low, float high) {
    const float factors[2][2] = {{even * low, even * high}, {odd * low, odd * high}};
    LATHE_UNROLL
    for (int i = 0; i < kValues; ++i) {
      to[i] = fmaf(sum[i], factors[i / 4 % 2][i / 2 % 2], to[i]);
    }
  }

  /// acc = the sum over all of K.
  __device__ void sum(const MatmulWork& w) {
    // The first two blocks of 8 rows have the scales of all.
    const MatmulFactors factors(p, w, first_row(w));
    if constexpr (kSharesTokens && T::kWarpgroups > 2) {
      sum_part(w, factors, MatmulPart(p, 0));
    } else if constexpr (T::kSpread) {
      sum_part(w, factors, MatmulPart(p, warp_value(w.part)));
    } else if constexpr (T::kGrouped) {
      sum_part(w, factors, MatmulPart(p, 0));
    } else if constexpr (T::kKeepsSums) {
      const std::int32_t first = list.is_part() ? warp_value(w.part) : 0;
      const std::int32_t last = list.is_part() ? first + 1 : p.split;
      LATHE_ROLLED
      for (std::int32_t part = first;;) {
        sum_part(w, factors, MatmulPart(p, part));
        if (part > first) add_own_sums(p, s, all());
        if (++part == last) break;
        wait_sent();
        keep_own_sums(p, s, all());
      }
    } else {
      float total[kValues];
      LATHE_ROLLED
      for (std::int32_t part = 0;;) {
        sum_part(w, factors, MatmulPart(p, part));
        if (part > 0) {
          LATHE_UNROLL
          for (int i = 0; i < kValues; ++i) acc[0][i] = total[i] + acc[0][i];
        }
        if (++part == p.split) break;
        LATHE_UNROLL
        for (int i = 0; i < kValues; ++i) total[i] = acc[0][i];
      }
    }
  }
  /// The sums of all turns.
  __device__ auto& all() { return reinterpret_cast<float(&)[kTurns * kValues]>(acc); }

  /// acc += the biases of the rows.
  __device__ void add_bias(const MatmulWork& w) {
    LATHE_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const std::int32_t row = 8 * j + 2 * (lane & 3) + i;
        const MatmulRow r = p.gate_step == 0
                                ? matmul_row(p, w, first_row(w) + row, 0)
                                : matmul_row(p, w, first_row(w) + row / 16 * 16 + row % 8, j % 2);
        const float* bias = p.weights[r.weight].bias;
        if (bias == nullptr) continue;
        const float v = bias[w.group * p.bias_group + r.row];
        LATHE_UNROLL
        for (int turn = 0; turn < kTurns; ++turn) {
          acc[turn][4 * j + i] += v;
          acc[turn][4 * j + 2 + i] += v;
        }
      }
    }
  }

  /// Waits until the warp's part of the output buffer may be overwritten.
  __device__ static void wait_sent() {
    if (elected()) wait_box_groups<0>();
    sync_warp();
  }
  /// Columns 8 j + 2 (lane % 4) and + 1 of the tile's output, of the thread's token h.
  template <bool kGated>
  __device__ float2 out_pair(int turn, int j, int h) const {
    if constexpr (!kGated) {
      const float* v = acc[turn] + 4 * j + 2 * h;
      return {v[0], v[1]};
    } else {
      const float* a = acc[turn] + 8 * j + 2 * h;
      const float* b = a + 4;
      const bool up = p.up_first != 0;
      return {activated(p.activation, up ? b[0] : a[0], up ? a[0] : b[0]),
              activated(p.activation, up ? b[1] : a[1], up ? a[1] : b[1])};
    }
  }

  /// v in registers of its own, in a way that the compiler cannot see through. Stores of pairs
  /// would otherwise decide in which registers sums are, and so that they are in the bank of the
  /// chunk's sums: an FMA whose three operands are in one bank takes two clocks.
  __device__ float2 moved(float2 v) const {
    const auto zero = static_cast<std::uint32_t>(p.m >> 31);
    return {bits_to_float(float_to_bits(v.x) ^ zero), bits_to_float(float_to_bits(v.y) ^ zero)};
  }
  /// Adds the bias, activates and stores.
  __device__ void store(const MatmulWork& w) {
    const MatmulWeight& weight = p.weights[w.weight];
    if (warp_value(first_row(w) >= weight.rows)) return;  // a pair's second tile may have no rows
    // Addresses that depend on these are computed for each tile: there are no registers for them.
    asm volatile("" : "+r"(lane), "+r"(warp), "+r"(group));
    if (weight.bias != nullptr || (p.gate_step != 0 && p.weights[1].bias != nullptr)) add_bias(w);
    wait_sent();
    LATHE_UNROLL
    for (int turn = 0; turn < kTurns; ++turn) {
      if (warp_value(w.token + turn_token(turn) >= w.end)) return;
      if (p.gate_step != 0) {
        store_turn<true>(weight, w, turn);
      } else {
        store_turn<false>(weight, w, turn);
      }
    }
  }
  template <bool kGated>
  __device__ void store_turn(const MatmulWeight& weight, const MatmulWork& w, int turn) const {
    if constexpr (kRows % (kGated ? 128 : 64) == 0) {
      static_assert(kRoom == 1 || kRoom == kRows / 64 * kTurns);
      if (weight.staged && weight.out_bf16) {
        send_bf16<kGated>(weight, w, turn);
        return;
      }
    }
    if constexpr (!kGated && !T::kGrouped && kRows % 64 == 0) {
      const bool whole = w.token + turn_token(turn) + 64 <= w.end;
      if (warp_value(weight.staged && whole && first_row(w) + kRows <= weight.rows)) {
        send_f32(weight, w, turn);
        return;
      }
    }
    LATHE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const std::int32_t token = w.token + token_at(turn, h);
      if (token < w.end) store_token<kGated>(weight, w, turn, h, token);
    }
  }
  /// As send_bf16(), for a turn that fills its boxes, of 16 tokens x 32 rows in f32.
  __device__ void send_f32(const MatmulWeight& weight, const MatmulWork& w, int turn) const {
    static_assert(kRoom > 0 && kRows / 32 * kTurns % kRoom == 0);
    const std::int32_t first = w.token + turn_token(turn) + 16 * warp;
    LATHE_UNROLL
    for (int n = 0; n < kRows / 32; ++n) {
      const std::uint32_t box = box_at(turn * (kRows / 32) + n);
      if (elected()) wait_box_groups<kRoom - 1>();
      sync_warp();
      LATHE_UNROLL
      for (int v = 0; v < 16; ++v) {
        const int j = v / 4, h = v / 2 % 2, i = v % 2;  // as in acc
        const int token = 8 * h + lane / 4, column = 8 * j + 2 * (lane & 3) + i;
        store_float(box + address(128 * token + 16 * (column / 4 ^ token % 8) + 4 * (column % 4)),
                    acc[turn][16 * n + v]);
      }
      fence_async_proxy();
      sync_warp();
      if (elected()) {
        const std::int32_t column =
            first_row(w) + 32 * n + static_cast<std::int32_t>(w.group * p.out_group);
        if (weight.add) {
          add_f32_box(&maps.out[w.weight], column, first, box);
        } else {
          store_box(&maps.out[w.weight], column, first, box);
        }
        end_box_group();
      }
    }
  }
  /// Stores two neighbouring columns at a time.
  template <bool kGated>
  __device__ void store_token(const MatmulWeight& weight, const MatmulWork& w, int turn, int h,
                              std::int32_t token) const {
    constexpr int kOut = kGated ? kBlocks / 2 : kBlocks;
    const std::int32_t columns = kGated ? weight.rows / 2 : weight.rows;
    std::int32_t column = (kGated ? first_row(w) / 2 : first_row(w)) + 2 * (lane & 3);
    const std::int64_t first = w.group * p.out_group + token * weight.out_stride;
    LATHE_UNROLL
    for (int j = 0; j < kOut; ++j, column += 8) {
      if (column >= columns) return;
      const float2 v = moved(out_pair<kGated>(turn, j, h));
      if (kGated || weight.out_bf16) {
        auto* out = static_cast<std::uint16_t*>(weight.out) + first + column;
        *reinterpret_cast<std::uint32_t*>(out) = pack_bf16(v.x, v.y);
        continue;
      }
      float* out = static_cast<float*>(weight.out) + first + column;
      if (weight.staged) {
        if (weight.add) {
          add_global_pair(out, v.x, v.y);
        } else {
          *reinterpret_cast<float2*>(out) = v;
        }
        continue;
      }
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        if (column + i >= columns) return;
        const float value = i == 0 ? v.x : v.y;
        if (weight.add) {
          add_global(out + i, value);
        } else {
          out[i] = value;
        }
      }
    }
  }
  /// Stores bf16 through shared memory, where word c of a token's eight is at c ^ (token % 8): no
  /// bank conflicts. TMA stores whole boxes while the next tile is summed. Others may reach into
  /// tokens of another group or rows of another weight; the warp stores their words.
  template <bool kGated>
  __device__ void send_bf16(const MatmulWeight& weight, const MatmulWork& w, int turn) const {
    constexpr int kBoxes = (kGated ? kRows / 2 : kRows) / 64;
    constexpr int kStep = kRoom < kBoxes ? kRoom : kBoxes;  // that are written together
    LATHE_UNROLL
    for (int box = 0; box < kBoxes; box += kStep) {
      if (kRoom < kBoxes * kTurns && turn + box > 0) wait_sent();
      LATHE_UNROLL
      for (int n = box; n < box + kStep; ++n) put_bf16<kGated>(turn, n, box_at(turn * kBoxes + n));
      fence_async_proxy();
      sync_warp();
      LATHE_UNROLL
      for (int n = box; n < box + kStep; ++n) {
        send_box<kGated>(weight, w, turn, n, box_at(turn * kBoxes + n));
      }
      if (elected()) end_box_group();
    }
  }
  /// Address of the warp's `n`-th box of a tile.
  __device__ std::uint32_t box_at(int n) const {
    return s.out(0) + address(((4 * group + warp) * kRoom + n % kRoom) * kBoxBytes);
  }
  __device__ static std::uint32_t word_at(std::uint32_t box, int token, int word) {
    return box + address(128 * token + 16 * (word ^ token % 8));
  }
  /// Writes 64 columns from 64 n on to a box.
  template <bool kGated>
  __device__ void put_bf16(int turn, int n, std::uint32_t box) const {
    LATHE_UNROLL
    for (int j = 0; j < 8; j += 2) {
      std::uint32_t v[4];
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float2 pair = out_pair<kGated>(turn, 8 * n + j + i / 2, i % 2);
        v[i] = pack_bf16(pair.x, pair.y);
      }
      store_matrices(word_at(box, lane % 16, j + lane / 16), v[0], v[1], v[2], v[3]);
    }
  }
  template <bool kGated>
  __device__ void send_box(const MatmulWeight& weight, const MatmulWork& w, int turn, int n,
                           std::uint32_t box) const {
    const std::int32_t columns = kGated ? weight.rows / 2 : weight.rows;
    const std::int32_t column = (kGated ? first_row(w) / 2 : first_row(w)) + 64 * n;
    const std::int32_t first = w.token + turn_token(turn) + 16 * warp;
    if (warp_value(first + kMatmulManyOutTokens <= w.end && column + 64 <= columns)) {
      if (elected()) {
        store_box(&maps.out[w.weight], column + static_cast<std::int32_t>(w.group * p.out_group),
                  first, box);
      }
      return;
    }
    const std::int32_t mine = column + lane % 8 * 8;
    LATHE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = 4 * i + lane / 8;
      if (mine >= columns || first + token >= w.end) break;
      auto* out = static_cast<std::uint16_t*>(weight.out) + w.group * p.out_group +
                  (first + token) * weight.out_stride + mine;
      *reinterpret_cast<uint4*>(out) = load_shared_u128(word_at(box, token, lane % 8));
    }
  }

  /// With tokens shared: the scales of the list's work tile, if there is one.
  __device__ void load_scales(MatmulWarpScales& to) {
    if (!list.more()) return;
    const MatmulWork w = list.work();
    to.load(MatmulFactors(p, w, first_row(w)), 0, p.chunks, lane);
  }
  /// run() with tokens shared. Scales are loaded a tile ahead.
  __device__ void run_ahead() {
    list.start();
    load_scales(scales);  // weights do not depend on the previous launch
    wait_for_previous();
    for (int n = 0; list.more(); ++n) {
      MatmulWarpScales next_scales;
      list.next();
      load_scales(next_scales);
      barrier_wait(s.full(stage.index), stage.parity);
      sum(list.get(n));
      store(list.get(n));
      scales = next_scales;
    }
    if (elected()) wait_box_groups<0>();  // as in run()
  }
  __device__ void run() {
    if constexpr (kSharesTokens) return run_ahead();
    // The stores may overwrite what the previous launch reads, or add to what it writes.
    wait_for_previous();
    list.start();
    for (int n = 0; list.more(); list.next(), ++n) {
      barrier_wait(s.full(stage.index), stage.parity);
      sum(list.get(n));
      if constexpr (T::kSpread || T::kSplitsLast) {
        if (list.is_part()) {
          const bool joined = join_parts<T>(p, list.get(n).part, all());
          if (!warp_value(joined)) continue;
        }
      }
      store(list.get(n));  // there are no registers for it next to the sums
    }
    // Shared memory may be freed only after TMA has read the boxes from it.
    if (elected()) wait_box_groups<0>();
  }
};

}  // namespace lathe::cuda
