// Requantizes slots of mla_fp8 to slots of mla_fp8_block, and back.
#pragma once

#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/encode.cuh"

namespace lathe::cuda {

// Losses that a thread has found in its rows.
struct RequantLoss {
  float worst = 0;
  std::uint32_t saturated = 0;
  std::uint32_t row = 0;  // row of the worst error, the first of equals

  // Adds the losses of a run of row `at`. A row's second run is added after its first.
  __device__ __forceinline__ void take(const RequantLoss& of_row, std::int64_t at) {
    saturated += of_row.saturated;
    const auto own = static_cast<std::uint32_t>(at);
    if (of_row.worst < worst || (of_row.worst == worst && own >= row)) return;
    worst = of_row.worst;
    row = own;
  }

  // NaN differences (equal infinities, or a NaN) count as no loss.
  __device__ __forceinline__ void see(const float (&before)[8], const float (&after)[8]) {
    for (int i = 0; i < 8; ++i) worst = fmaxf(worst, fabsf(before[i] - after[i]));
  }

  __device__ __forceinline__ void see_saturated(const float (&before)[8], float inverse,
                                                const uint2& codes) {
    // Only codes of 448 or NaN can come from larger values.
    const auto high = [](std::uint32_t c) {
      return ((c & 0x7f7f7f7fu) + 0x02020202u) & 0x80808080u;
    };
    if ((high(codes.x) | high(codes.y)) == 0) return;
    count_saturated(before, inverse);
  }
  __device__ __forceinline__ void count_saturated(const float (&before)[8], float inverse) {
    for (int i = 0; i < 8; ++i) saturated += fabsf(before[i] * inverse) > kSaturates ? 1 : 0;
  }
};

// One atomic per warp that has a loss to report. The word is the error followed by the complement
// of its row, so among equal errors the first row is the largest word.
__device__ __forceinline__ void report_loss(const RequantLoss& loss, unsigned long long* report) {
  const std::uint32_t worst = warp_max(float_to_bits(loss.worst));
  if (worst != 0) {
    const bool mine = float_to_bits(loss.worst) == worst;
    const std::uint32_t first = warp_max(mine ? 0xffffffffu - loss.row : 0);
    const unsigned long long word = static_cast<unsigned long long>(worst) << 32 | first;
    // A stale value is only too small, so it causes at most a needless atomic.
    if (lane_of_warp() == 0 && word > load_global<unsigned long long>(address_of(report))) {
      atomicMax(&report[0], word);
    }
  }
  if (!warp_any(loss.saturated != 0)) return;
  const std::uint32_t saturated = warp_sum(loss.saturated);
  if (lane_of_warp() == 0) atomicAdd(&report[1], static_cast<unsigned long long>(saturated));
}

// Keeps the codes and gives every tile the tensor's scale; converts the rope to bf16.
template <RunKind kTo, bool kReport, class To>
__device__ __forceinline__ void to_block_chunk(const RunParams& dst, const StoredChunk& stored,
                                               To values, To scales, std::uint32_t chunk,
                                               RequantLoss& loss) {
  const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
  if constexpr (kTo == RunKind::e4m3_f32) {
    store(values + 8 * Address{chunk}, codes.codes, dst.vector);
    if ((chunk & ((1u << dst.tile_shift) - 1)) == 0) {
      store_scale<kTo>(dst, scales + 4 * Address{dst.first_tile + (chunk >> dst.tile_shift)},
                       bits_to_float(stored.scale));
    }
    return;
  }
  const Raw<bf16> out = decode_chunk<bf16, RunKind::e4m3_tensor>(stored);
  store(values + 16 * Address{chunk}, out.v, dst.vector);
  if constexpr (kReport) {
    float before[8], after[8];
    codes.values(bits_to_float(stored.scale), before);
    to_floats(out, after);
    loss.see(before, after);
  }
}

// kNumbers: neither a code nor the scale is NaN or infinite.
template <RunKind kFrom, bool kReport, bool kNumbers, class To>
__device__ __forceinline__ void to_plain_chunk(const RunParams& dst, const StoredChunk& stored,
                                               To values, std::uint32_t chunk, RequantLoss& loss) {
  float before[8];
  if constexpr (kNumbers && kFrom == RunKind::e4m3_f32) {
    E4m3Chunk{{stored.codes.x, stored.codes.y}}.values(bits_to_float(stored.scale), before);
  } else {
    to_floats(decode_chunk<float, kFrom>(stored), before);
  }
  const E4m3Chunk codes{kNumbers ? to_raw_e4m3_numbers(before, dst.inverse)
                                 : to_raw_e4m3(before, dst.inverse)};
  store(values + 8 * Address{chunk}, codes.codes, dst.vector);
  if constexpr (kReport) {
    float after[8];
    codes.values(dst.scale, after);
    loss.see(before, after);
    loss.see_saturated(before, dst.inverse, codes.codes);
  }
}

// Whether to_plain_chunk() may use kNumbers.
template <RunKind kFrom>
__device__ __forceinline__ bool holds_numbers(const StoredChunk& stored) {
  if constexpr (kFrom == RunKind::e4m3_f32) {
    const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
    return codes.numbers() && is_finite(bits_to_float(stored.scale));
  } else {
    const auto special = [](std::uint32_t pair) {
      return ((pair & 0x7fff7fffu) + 0x00800080u) & 0x80008000u;
    };
    return (special(stored.codes.x) | special(stored.codes.y) | special(stored.codes.z) |
            special(stored.codes.w)) == 0;
  }
}

// A lane's part of a run of its row, loaded before any of it is used.
template <RunKind kFrom, RunKind kTo, int kCount, bool kReport>
struct RequantBatch {
  const RunParams& src;
  const RunParams& dst;
  const Hold& hold;
  Address from_values, from_scales;
  StoredChunk stored[kCount];

  __device__ __forceinline__ RequantBatch(const RunParams& source, const RunParams& target,
                                          const Hold& held, const Place& from)
      : src(source),
        dst(target),
        hold(held),
        from_values(from.part(src.start, src.step)),
        from_scales(from.part(src.scale_start, src.scale_step)) {
    LATHE_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) stored[u] = load_chunk(u);
  }

  __device__ __forceinline__ std::uint32_t chunk(std::uint32_t u) const {
    return hold.chunk + u * hold.step;
  }
  __device__ __forceinline__ StoredChunk load_chunk(std::uint32_t u) const {
    return load_stored<kFrom>(src, from_values, from_scales, chunk(u));
  }

  template <bool kStaged>
  __device__ __forceinline__ void finish(const Stage<kStaged>& stage, const Place& to,
                                         RequantLoss& loss) const {
    const auto values = stage.part(to, hold.row, dst.start, dst.step);
    const auto scales = stage.part(to, hold.row, dst.scale_start, dst.scale_step);
    if constexpr (kTo == RunKind::e4m3_tensor) {
      bool numbers = true;
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) numbers = numbers && holds_numbers<kFrom>(stored[u]);
      if (numbers) {
        LATHE_UNROLL
        for (std::uint32_t u = 0; u < kCount; ++u) {
          to_plain_chunk<kFrom, kReport, true>(dst, stored[u], values, chunk(u), loss);
        }
      } else {
        // Rare and long, so there is a single copy of this code, which reads its chunk again.
        LATHE_ROLLED
        for (std::uint32_t u = 0; u < kCount; ++u) {
          to_plain_chunk<kFrom, kReport, false>(dst, load_chunk(u), values, chunk(u), loss);
        }
      }
    } else {
      LATHE_UNROLL
      for (std::uint32_t u = 0; u < kCount; ++u) {
        to_block_chunk<kTo, kReport>(dst, stored[u], values, scales, chunk(u), loss);
      }
    }
  }
};

template <RunKind kFrom, RunKind kTo, int kCount, bool kReport, bool kStaged>
__device__ __forceinline__ void requantize_batch(const RequantParams& p, const RunParams& src,
                                                 const RunParams& dst, std::int64_t first_row,
                                                 const Hold& hold, const Stage<kStaged>& stage,
                                                 RequantLoss& loss) {
  const std::int64_t row = first_row + hold.row;
  const Place from = place_of(p.src, p.src_slots[row]);
  const Place to = place_of(p.dst, from.hole ? -1 : p.dst_slots[row]);
  if (src.first_chunk == 0 && hold.chunk == 0 && hold.has) stage.send(to, hold.row);
  const RequantBatch<kFrom, kTo, kCount, kReport> batch(src, dst, hold, from);
  RequantLoss of_row;
  if (hold.has && !to.hole) batch.finish(stage, to, of_row);
  if constexpr (kReport) loss.take(of_row, row);
}

template <RunKind kFrom, RunKind kTo, bool kReport, bool kWhole, bool kStaged>
__device__ __forceinline__ void requantize_run(const RequantParams& p, int i,
                                               std::int64_t first_row, std::uint32_t rows,
                                               WarpBatches& batches, const Stage<kStaged>& stage,
                                               RequantLoss& loss) {
  const RunParams src = known_run<kFrom, kWhole>(p.src_runs[i]);
  const RunParams dst = known_run<kTo, kWhole>(p.dst_runs[i]);
  constexpr Rounds kRounds = requant_rounds(kWhole);
  batches.run(src.lanes.batches, [&](std::uint32_t batch) {
    const auto hold = Hold::of<kWhole>(src.lanes, batch, rows);
    if (kRounds.many == kRounds.few || src.lanes.rounds == kRounds.many) {
      requantize_batch<kFrom, kTo, kRounds.many, kReport>(p, src, dst, first_row, hold, stage,
                                                          loss);
    } else {
      requantize_batch<kFrom, kTo, kRounds.few, kReport>(p, src, dst, first_row, hold, stage, loss);
    }
  });
}

// Both runs of a row in the same lanes: lanes of the first run's batch also process one chunk of
// the rope each, as far as there are any. So a record is read and written at one time.
template <bool kToBlock, bool kReport, bool kStaged>
__device__ __forceinline__ void requantize_rows(const RequantParams& p, std::int64_t first_row,
                                                std::uint32_t rows, WarpBatches& batches,
                                                const Stage<kStaged>& stage, RequantLoss& loss) {
  constexpr RunKind kPlain = RunKind::e4m3_tensor, kTiles = RunKind::e4m3_f32;
  constexpr RunKind kFrom = kToBlock ? kPlain : kTiles, kTo = kToBlock ? kTiles : kPlain;
  constexpr RunKind kFromRope = kToBlock ? kPlain : RunKind::bf16;
  constexpr RunKind kToRope = kToBlock ? RunKind::bf16 : kPlain;
  const RunParams src = known_run<kFrom, true>(p.src_runs[0]);
  const RunParams dst = known_run<kTo, true>(p.dst_runs[0]);
  const RunParams src_rope = known_run<kFromRope, true>(p.src_runs[1]);
  const RunParams dst_rope = known_run<kToRope, true>(p.dst_runs[1]);
  batches.run(src.lanes.batches, [&](std::uint32_t batch) {
    const auto hold = Hold::of<true>(src.lanes, batch, rows);
    Hold rope_hold = hold;
    rope_hold.has = hold.has && hold.chunk < src_rope.lanes.chunks;
    if (hold.chunk >= src_rope.lanes.chunks) rope_hold.chunk = src_rope.lanes.chunks - 1;
    const Place from = place_of(p.src, p.src_slots[first_row + hold.row]);
    const std::int32_t to_slot = p.dst_slots[first_row + hold.row];
    constexpr int kCount = requant_rounds(true).many;
    const RequantBatch<kFrom, kTo, kCount, kReport> codes(src, dst, hold, from);
    const RequantBatch<kFromRope, kToRope, 1, kReport> rope(src_rope, dst_rope, rope_hold, from);
    RequantLoss of_row;
    // Computed late, because registers are scarce while chunks are in flight.
    const Place to = place_of(p.dst, from.hole ? -1 : to_slot);
    if (hold.has && hold.chunk == 0) stage.send(to, hold.row);
    if (hold.has && !to.hole) codes.finish(stage, to, of_row);
    if (rope_hold.has && !to.hole) rope.finish(stage, to, of_row);
    if constexpr (kReport) loss.take(of_row, first_row + hold.row);
  });
}

// Blocks per SM, which limits registers: as many as work without spills.
template <bool kToBlock, bool kReport, bool kTogether>
constexpr int requant_blocks() {
  if (kReport && !kToBlock) return 4;
  return kTogether || kReport ? 5 : 6;
}

// Grid: ceil(count / block_rows) blocks of p.threads.
template <bool kToBlock, bool kReport, bool kWhole, bool kTogether>
static __global__ void __launch_bounds__(kCodecThreads,
                                         (requant_blocks<kToBlock, kReport, kTogether>()))
    requantize_kernel(const __grid_constant__ RequantParams p) {
  constexpr RunKind kPlain = RunKind::e4m3_tensor;
  constexpr RunKind kFrom[] = {kToBlock ? kPlain : RunKind::e4m3_f32,
                               kToBlock ? kPlain : RunKind::bf16};
  constexpr RunKind kTo[] = {kToBlock ? RunKind::e4m3_f32 : kPlain,
                             kToBlock ? RunKind::bf16 : kPlain};
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  prefetch_list(p.src_slots, first_row, p.block_rows, p.count);
  prefetch_list(p.dst_slots, first_row, p.block_rows, p.count);
  LATHE_DYNAMIC_SHARED(shared);
  const Stage<staged(kTo[0], kTo[1], kWhole)> stage(shared, p.block_rows, p.dst_runs[0].step);
  WarpBatches batches;
  RequantLoss loss;
  if constexpr (kTogether) {
    requantize_rows<kToBlock, kReport>(p, first_row, rows, batches, stage, loss);
  } else {
    requantize_run<kFrom[0], kTo[0], kReport, kWhole>(p, 0, first_row, rows, batches, stage, loss);
    if (p.run_count == 2) {
      requantize_run<kFrom[1], kTo[1], kReport, kWhole>(p, 1, first_row, rows, batches, stage,
                                                        loss);
    }
  }
  stage.write(rows);
  if constexpr (kReport) report_loss(loss, p.report);
}

template <bool kReport>
auto requantize_kernel_of(const RequantParams& p, bool to_block) {
  if (p.together) {
    return to_block ? requantize_kernel<true, kReport, true, true>
                    : requantize_kernel<false, kReport, true, true>;
  }
  if (p.whole) {
    return to_block ? requantize_kernel<true, kReport, true, false>
                    : requantize_kernel<false, kReport, true, false>;
  }
  return to_block ? requantize_kernel<true, kReport, false, false>
                  : requantize_kernel<false, kReport, false, false>;
}

}  // namespace lathe::cuda
