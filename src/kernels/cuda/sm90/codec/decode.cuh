// Slots into rows.
#pragma once

#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// The stored codes of a chunk and their scale, loaded and not yet looked at.
struct StoredChunk {
  uint4 codes;  // 16 bytes of bf16, 8 of e4m3, 4 of e2m1
  std::uint32_t
      scale;  // bits of an f32, or an exponent byte: converting here would wait for the load
};

template <RunKind kKind>
inline constexpr bool kTiled =
    kKind == RunKind::e4m3_f32 || kKind == RunKind::e4m3_ue8m0 || kKind == RunKind::e2m1_ue8m0;

template <RunKind kKind>
__device__ __forceinline__ StoredChunk load_stored(const RunParams& run, Address values,
                                                   Address scales, std::uint32_t chunk) {
  StoredChunk out{{0, 0, 0, 0}, float_to_bits(run.scale)};
  if constexpr (kKind == RunKind::bf16) {
    out.codes = load<uint4>(values + 16 * Address{chunk}, run.vector);
  } else if constexpr (kKind == RunKind::e2m1_ue8m0) {
    out.codes.x = load<std::uint32_t>(values + 4 * Address{chunk}, run.vector);
  } else {
    const uint2 codes = load<uint2>(values + 8 * Address{chunk}, run.vector);
    out.codes.x = codes.x;
    out.codes.y = codes.y;
  }
  if constexpr (kTiled<kKind>) {
    const std::uint32_t tile =
        run.first_tile + (run.tile_shift == kWideTile ? 0 : chunk >> run.tile_shift);
    out.scale = kKind == RunKind::e4m3_f32
                    ? load<std::uint32_t>(scales + 4 * Address{tile}, run.vector_scale)
                    : load_global<unsigned char>(scales + tile);
  }
  return out;
}

template <RunKind kKind>
__device__ __forceinline__ float scale_of(const StoredChunk& stored) {
  if constexpr (kKind == RunKind::e4m3_ue8m0 || kKind == RunKind::e2m1_ue8m0) {
    return to_f32(ue8m0{static_cast<std::uint8_t>(stored.scale)});
  }
  return bits_to_float(stored.scale);
}

__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 0x1.fffffep127f; }

__device__ __forceinline__ void copy_bf16(const uint4& codes, Raw<bf16>& out) { out.v = codes; }
__device__ __forceinline__ void copy_bf16(const uint4& codes, Raw<float>& out) {
  out.v[0] = {codes.x << 16, codes.x & 0xffff0000u, codes.y << 16, codes.y & 0xffff0000u};
  out.v[1] = {codes.z << 16, codes.z & 0xffff0000u, codes.w << 16, codes.w & 0xffff0000u};
}

__device__ __forceinline__ Raw<bf16> numbers_of(const float (&v)[8], const Raw<bf16>&) {
  return to_raw_bf16_numbers(v);
}
__device__ __forceinline__ Raw<float> numbers_of(const float (&v)[8], const Raw<float>&) {
  return to_raw_f32(v);
}

template <class T, class Codes>
__device__ __forceinline__ Raw<T> decode_codes(const Codes& codes, float scale, bool numbers) {
  float v[8];
  codes.values(scale, v);
  Raw<T> out;
  if (numbers) return numbers_of(v, out);
  to_raw(codes, v, out);
  return out;
}

template <class T, RunKind kKind>
__device__ __forceinline__ Raw<T> decode_chunk(const StoredChunk& stored) {
  if constexpr (kKind == RunKind::bf16) {
    Raw<T> out;
    copy_bf16(stored.codes, out);
    return out;
  } else if constexpr (kKind == RunKind::e2m1_ue8m0) {
    const E2m1Chunk codes{stored.codes.x};
    if constexpr (sizeof(T) == sizeof(bf16)) {
      if (stored.scale != 255) {
        // 2^-127 is a subnormal bf16.
        const std::uint32_t power = stored.scale == 0 ? 0x40u : stored.scale << 7;
        return codes.scaled(power | power << 16);
      }
    }
    return decode_codes<T>(codes, scale_of<kKind>(stored), stored.scale != 255);
  } else {
    const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
    const float scale = scale_of<kKind>(stored);
    return decode_codes<T>(codes, scale, codes.numbers() && is_finite(scale));
  }
}

template <class T, RunKind kKind, bool kAligned>
__device__ __forceinline__ void decode_batch(const DecodeParams& p, const RunParams& run,
                                             std::int64_t first_row, const Batch& batch) {
  constexpr int kCount = decode_rounds(kAligned);
  const Items<kCount> item(run.cut.chunks, batch);
  const std::uint32_t lane_row = batch.first_row + lane_of_warp();
  const std::int64_t row = first_row + lane_row;
  Place place;
  if (lane_row < batch.rows) {
    place = place_of(p.pages,
                     p.slots == nullptr ? static_cast<std::int32_t>(p.first + row) : p.slots[row]);
  }
  const Address values_of_lane = place.part(run.start, run.step);
  const Address scales_of_lane = place.part(run.scale_start, run.scale_step);
  StoredChunk stored[kCount];
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    const Address values = shuffle(values_of_lane, item.row[u]);
    const Address scales = kTiled<kKind> ? shuffle(scales_of_lane, item.row[u]) : 0;
    stored[u] = load_stored<kKind>(run, values, scales, item.chunk[u]);
  }
  const std::uint32_t holes = warp_ballot(place.hole);
  const Address out =
      row_address(p.out, first_row + batch.first_row, run.first_chunk * kChunk * sizeof(T));
  LATHE_UNROLL
  for (int u = 0; u < kCount; ++u) {
    if (!item.has(u)) continue;
    // Zero codes are the zeros that a hole gives, under a scale of 0 or 2^-127.
    if ((holes >> item.row[u] & 1u) != 0) stored[u] = {};
    const Address at =
        out + Address{item.row[u]} * p.out.stride + Address{item.chunk[u]} * (kChunk * sizeof(T));
    store_raw(at, decode_chunk<T, kKind>(stored[u]), kAligned || p.out.vector);
  }
}

// Grid: ceil(count / block_rows) blocks of p.threads. T: what rows hold, bf16 or float; runs are
// stored as kFirst and, where there are two, kSecond.
template <class T, RunKind kFirst, RunKind kSecond, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads, sizeof(T) == 2 ? 4 : 3)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  WarpBatches batches(rows_of_block(p.count, first_row, p.block_rows));
  batches.run(p.runs[0].cut, [&](const Batch& batch) {
    decode_batch<T, kFirst, kAligned>(p, known_run<kFirst, kAligned>(p.runs[0]), first_row, batch);
  });
  if (p.run_count == 1) return;
  batches.run(p.runs[1].cut, [&](const Batch& batch) {
    decode_batch<T, kSecond, kAligned>(p, known_run<kSecond, kAligned>(p.runs[1]), first_row,
                                       batch);
  });
}

}  // namespace lathe::cuda
