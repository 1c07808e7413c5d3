// Slots of mla_fp8 into slots of mla_fp8_block, and back.
#pragma once

#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/encode.cuh"

namespace lathe::cuda {

// What a thread saw: the worst error, above the complement of its row so that of equal errors the
// first row is the largest word, and a count.
struct RequantLoss {
  unsigned long long worst = 0;
  unsigned long long saturated = 0;

  __device__ __forceinline__ void see(const float (&before)[8], const float (&after)[8],
                                      std::int64_t row) {
    float error = 0;
    for (int i = 0; i < 8; ++i) {
      const float e = fabsf(before[i] - after[i]);
      if (before[i] != after[i] && e > error) error = e;
    }
    if (error == 0) return;
    const unsigned long long word = static_cast<unsigned long long>(float_to_bits(error)) << 32 |
                                    (0xffffffffull - static_cast<unsigned long long>(row));
    if (word > worst) worst = word;
  }
};

// One atomic per warp that has something to say.
__device__ __forceinline__ void report_loss(const RequantLoss& loss, unsigned long long* report) {
  unsigned long long worst = loss.worst;
  unsigned long long saturated = loss.saturated;
  for (int d = 1; d < 32; d *= 2) {
    const unsigned long long other = shuffle_xor(worst, d);
    if (other > worst) worst = other;
    saturated += shuffle_xor(saturated, d);
  }
  if (threadIdx.x % 32 != 0) return;
  if (worst != 0) atomicMax(&report[0], worst);
  if (saturated != 0) atomicAdd(&report[1], saturated);
}

// Codes stay and every tile gets the tensor's scale, or (the rope) become bf16.
template <RunKind kTo, bool kReport>
__device__ __forceinline__ void to_block_chunk(const RunParams& dst, const StoredChunk& stored,
                                               Address values, Address scales, std::uint32_t chunk,
                                               std::int64_t row, RequantLoss& loss) {
  const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
  if constexpr (kTo == RunKind::e4m3_f32) {
    store(values + 8 * Address{chunk}, codes.codes, dst.vector);
    store_tile_scale<kTo>(dst, scales, chunk, bits_to_float(stored.scale));
    return;
  }
  const Raw<bf16> out = decode_chunk<bf16, RunKind::e4m3_tensor>(stored);
  store(values + 16 * Address{chunk}, out.v, dst.vector);
  if constexpr (kReport) {
    float before[8], after[8];
    codes.values(bits_to_float(stored.scale), before);
    to_floats(out, after);
    loss.see(before, after, row);
  }
}

template <RunKind kFrom, bool kReport>
__device__ __forceinline__ void to_plain_chunk(const RunParams& dst, const StoredChunk& stored,
                                               Address values, std::uint32_t chunk,
                                               std::int64_t row, RequantLoss& loss) {
  float before[8];
  bool numbers = false;  // no NaN
  if constexpr (kFrom == RunKind::e4m3_f32) {
    const E4m3Chunk from{{stored.codes.x, stored.codes.y}};
    const float scale = bits_to_float(stored.scale);
    numbers = from.numbers() && is_finite(scale);
    from.values(scale, before);
    if (!numbers) make_canonical(from, before);
  } else {
    to_floats(decode_chunk<float, kFrom>(stored), before);
  }
  const E4m3Chunk codes{numbers ? to_raw_e4m3_numbers(before, dst.inverse)
                                : to_raw_e4m3(before, dst.inverse)};
  store(values + 8 * Address{chunk}, codes.codes, dst.vector);
  if constexpr (kReport) {
    float after[8];
    codes.values(dst.scale, after);
    loss.see(before, after, row);
    // 464 lies half way from 448 to the 480 that e4m3 does not have.
    for (int i = 0; i < 8; ++i) loss.saturated += fabsf(before[i] * dst.inverse) > 464.0f ? 1 : 0;
  }
}

template <RunKind kFrom, RunKind kTo, bool kReport, bool kAligned>
__device__ __forceinline__ void requantize_batch(const RequantParams& p, const RunParams& src,
                                                 const RunParams& dst, std::int64_t first_row,
                                                 const Batch& batch, RequantLoss& loss) {
  constexpr int kCount = requant_rounds(kAligned);
  const Items<kCount> item(src.cut.chunks, batch);
  const std::uint32_t lane_row = batch.first_row + lane_of_warp();
  Place from, to;
  if (lane_row < batch.rows) {
    from = place_of(p.src, p.src_slots[first_row + lane_row]);
    to = place_of(p.dst, p.dst_slots[first_row + lane_row]);
  }
  const Address from_values = from.part(src.start, src.step);
  const Address from_scales = from.part(src.scale_start, src.scale_step);
  const Address to_values = to.part(dst.start, dst.step);
  const Address to_scales = to.part(dst.scale_start, dst.scale_step);
  StoredChunk stored[kCount];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address values = shuffle(from_values, item.row[u]);
    const Address scales = kTiled<kFrom> ? shuffle(from_scales, item.row[u]) : 0;
    stored[u] = load_stored<kFrom>(src, values, scales, item.chunk[u]);
  }
  const std::uint32_t holes = warp_ballot(from.hole || to.hole);
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address values = shuffle(to_values, item.row[u]);
    const Address scales = kTiled<kTo> ? shuffle(to_scales, item.row[u]) : 0;
    if (!item.has(u, holes)) continue;
    const std::int64_t row = first_row + batch.first_row + item.row[u];
    if constexpr (kTo == RunKind::e4m3_tensor) {
      to_plain_chunk<kFrom, kReport>(dst, stored[u], values, item.chunk[u], row, loss);
    } else {
      to_block_chunk<kTo, kReport>(dst, stored[u], values, scales, item.chunk[u], row, loss);
    }
  }
}

// Grid: ceil(count / block_rows) blocks of p.threads.
template <bool kToBlock, bool kReport, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads, kReport ? 3 : 4)
    requantize_kernel(const __grid_constant__ RequantParams p) {
  constexpr RunKind kPlain = RunKind::e4m3_tensor;
  constexpr RunKind kFrom[] = {kToBlock ? kPlain : RunKind::e4m3_f32,
                               kToBlock ? kPlain : RunKind::bf16};
  constexpr RunKind kTo[] = {kToBlock ? RunKind::e4m3_f32 : kPlain,
                             kToBlock ? RunKind::bf16 : kPlain};
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  WarpBatches batches(rows_of_block(p.count, first_row, p.block_rows));
  RequantLoss loss;
  batches.run(p.src_runs[0].cut, [&](const Batch& batch) {
    requantize_batch<kFrom[0], kTo[0], kReport, kAligned>(
        p, known_run<kFrom[0], kAligned>(p.src_runs[0]), known_run<kTo[0], kAligned>(p.dst_runs[0]),
        first_row, batch, loss);
  });
  if (p.run_count == 2) {
    batches.run(p.src_runs[1].cut, [&](const Batch& batch) {
      requantize_batch<kFrom[1], kTo[1], kReport, kAligned>(
          p, known_run<kFrom[1], kAligned>(p.src_runs[1]),
          known_run<kTo[1], kAligned>(p.dst_runs[1]), first_row, batch, loss);
    });
  }
  if constexpr (kReport) report_loss(loss, p.report);
}

}  // namespace lathe::cuda
