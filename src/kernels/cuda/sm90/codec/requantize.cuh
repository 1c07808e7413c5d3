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

// Codes stay, every tile gets the tensor's scale; the rope becomes bf16.
__device__ __forceinline__ void to_block_chunk(const RequantParams& p, const RunParams& dst,
                                               const StoredChunk& stored, const Place& to,
                                               std::uint32_t chunk, std::int64_t row,
                                               RequantLoss& loss) {
  const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
  if (dst.kind == RunKind::e4m3_f32) {
    store(part_at(p.dst, to, dst.start, dst.step) + 8 * chunk, codes.codes, dst.vector);
    if ((chunk & ((1u << dst.tile_shift) - 1)) == 0) {
      store_scale(p.dst, dst, to, dst.first_tile + (chunk >> dst.tile_shift),
                  bits_to_float(stored.scale));
    }
    return;
  }
  float before[8], after[8];
  codes.values(bits_to_float(stored.scale), before);
  Raw<bf16> out;
  to_raw(codes, before, out);
  store(part_at(p.dst, to, dst.start, dst.step) + 16 * chunk, out.v, dst.vector);
  to_floats(out, after);
  if (p.report != nullptr) loss.see(before, after, row);
}

__device__ __forceinline__ void to_plain_chunk(const RequantParams& p, const RunParams& src,
                                               const RunParams& dst, const StoredChunk& stored,
                                               const Place& to, std::uint32_t chunk,
                                               std::int64_t row, RequantLoss& loss) {
  const Raw<float> decoded = decode_chunk<float>(src, stored);
  float before[8], after[8];
  to_floats(decoded, before);
  const E4m3Chunk codes{to_raw_e4m3(before, dst.inverse)};
  store(part_at(p.dst, to, dst.start, dst.step) + 8 * chunk, codes.codes, dst.vector);
  if (p.report == nullptr) return;
  codes.values(dst.scale, after);
  loss.see(before, after, row);
  // 464 lies half way from 448 to the 480 that e4m3 does not have.
  for (int i = 0; i < 8; ++i) loss.saturated += fabsf(before[i] * dst.inverse) > 464.0f ? 1 : 0;
}

// Grid: ceil(count / block_rows) blocks of kCodecThreads.
template <bool kToBlock, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads)
    requantize_kernel(const __grid_constant__ RequantParams p) {
  constexpr int kCount = kRound<kAligned>;
  __shared__ Place from[kMaxBlockRows];
  __shared__ Place to[kMaxBlockRows];
  const int rows = rows_of_block(p.count, p.block_rows);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kCodecThreads) {
    from[r] = place_of(p.src, p.src_slots[first_row + r]);
    to[r] = place_of(p.dst, p.dst_slots[first_row + r]);
  }
  sync_block();
  RequantLoss loss;
  for (int r = 0; r < p.run_count; ++r) {
    const RunParams src = known_run<kAligned>(p.src_runs[r]);
    const RunParams dst = known_run<kAligned>(p.dst_runs[r]);
    const std::uint32_t total = static_cast<std::uint32_t>(rows) * src.chunks.divisor;
    for (std::uint32_t base = threadIdx.x; base < total; base += kCodecThreads * kCount) {
      StoredChunk stored[kCount];
      int row[kCount];
      std::uint32_t chunk[kCount];
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) {
        const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
        row[u] = static_cast<int>(row_of(src.chunks, i, chunk[u]));
        if (i >= total || from[row[u]].hole() || to[row[u]].hole()) row[u] = -1;
        stored[u] = {};
        if (row[u] >= 0) stored[u] = load_stored(p.src, src, from[row[u]], chunk[u]);
      }
      LATHE_UNROLL
      for (int u = 0; u < kCount; ++u) {
        if (row[u] < 0) continue;
        const std::int64_t number = first_row + row[u];
        if constexpr (kToBlock) {
          to_block_chunk(p, dst, stored[u], to[row[u]], chunk[u], number, loss);
        } else {
          to_plain_chunk(p, src, dst, stored[u], to[row[u]], chunk[u], number, loss);
        }
      }
    }
  }
  if (p.report != nullptr) report_loss(loss, p.report);
}

}  // namespace lathe::cuda
