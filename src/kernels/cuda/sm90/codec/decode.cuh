// Slots into rows.
#pragma once

#include "kernels/cuda/sm90/codec/block_rows.cuh"

namespace lathe::cuda {

// The stored codes of a chunk and their scale, loaded and not yet looked at.
struct StoredChunk {
  uint4 codes;  // 16 bytes of bf16, 8 of e4m3, 4 of e2m1
  std::uint32_t
      scale;  // bits of an f32, or an exponent byte: converting here would wait for the load
};

__device__ __forceinline__ std::uint32_t load_scale(const PagesParams& pages, const RunParams& run,
                                                    const Place& place, std::uint32_t chunk) {
  if (run.kind == RunKind::bf16 || run.kind == RunKind::e4m3_tensor)
    return float_to_bits(run.scale);
  const std::uint32_t tile =
      run.first_tile + (run.tile_shift == kWideTile ? 0 : chunk >> run.tile_shift);
  const std::byte* scales = part_at(pages, place, run.scale_start, run.scale_step);
  if (run.kind == RunKind::e4m3_f32) {
    return load<std::uint32_t>(scales + 4 * tile, run.vector_scale);
  }
  return static_cast<std::uint32_t>(scales[tile]);
}

__device__ __forceinline__ float scale_of(const RunParams& run, const StoredChunk& stored) {
  if (run.kind == RunKind::e4m3_ue8m0 || run.kind == RunKind::e2m1_ue8m0) {
    return to_f32(ue8m0{static_cast<std::uint8_t>(stored.scale)});
  }
  return bits_to_float(stored.scale);
}

__device__ __forceinline__ StoredChunk load_stored(const PagesParams& pages, const RunParams& run,
                                                   const Place& place, std::uint32_t chunk) {
  const std::byte* values = part_at(pages, place, run.start, run.step);
  StoredChunk out{{0, 0, 0, 0}, load_scale(pages, run, place, chunk)};
  if (run.kind == RunKind::bf16) {
    out.codes = load<uint4>(values + 16 * chunk, run.vector);
  } else if (run.kind == RunKind::e2m1_ue8m0) {
    out.codes.x = load<std::uint32_t>(values + 4 * chunk, run.vector);
  } else {
    const uint2 codes = load<uint2>(values + 8 * chunk, run.vector);
    out.codes.x = codes.x;
    out.codes.y = codes.y;
  }
  return out;
}

__device__ __forceinline__ void copy_bf16(const uint4& codes, Raw<bf16>& out) { out.v = codes; }
__device__ __forceinline__ void copy_bf16(const uint4& codes, Raw<float>& out) {
  out.v[0] = {codes.x << 16, codes.x & 0xffff0000u, codes.y << 16, codes.y & 0xffff0000u};
  out.v[1] = {codes.z << 16, codes.z & 0xffff0000u, codes.w << 16, codes.w & 0xffff0000u};
}

template <class T>
__device__ __forceinline__ Raw<T> decode_chunk(const RunParams& run, const StoredChunk& stored) {
  Raw<T> out;
  if (run.kind == RunKind::bf16) {
    copy_bf16(stored.codes, out);
    return out;
  }
  const float scale = scale_of(run, stored);
  float v[8];
  if (run.kind == RunKind::e2m1_ue8m0) {
    const E2m1Chunk codes{stored.codes.x};
    codes.values(scale, v);
    to_raw(codes, v, out);
  } else {
    const E4m3Chunk codes{{stored.codes.x, stored.codes.y}};
    codes.values(scale, v);
    to_raw(codes, v, out);
  }
  return out;
}

__device__ __forceinline__ void store_raw(std::byte* at, const Raw<bf16>& raw, bool vector) {
  store(at, raw.v, vector);
}
__device__ __forceinline__ void store_raw(std::byte* at, const Raw<float>& raw, bool vector) {
  store(at, raw.v[0], vector);
  store(at + 16, raw.v[1], vector);
}

template <class T, bool kAligned>
__device__ __forceinline__ void decode_run(const DecodeParams& p, const RunParams& run,
                                           const Place* places, int rows) {
  constexpr int kCount = kRound<kAligned>;
  std::byte* first = block_row(p.out, p.block_rows);
  const std::uint32_t total = static_cast<std::uint32_t>(rows) * run.chunks.divisor;
  for (std::uint32_t base = threadIdx.x; base < total; base += kCodecThreads * kCount) {
    StoredChunk stored[kCount];
    int row[kCount];
    std::uint32_t chunk[kCount];
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
      row[u] = static_cast<int>(row_of(run.chunks, i, chunk[u]));
      // Zero codes are the zeros that a hole gives, under a scale of 0 or 2^-127.
      stored[u] = {};
      if (i >= total) continue;
      const Place place = places[row[u]];
      if (!place.hole()) stored[u] = load_stored(p.pages, run, place, chunk[u]);
    }
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      if (base + static_cast<std::uint32_t>(u) * kCodecThreads >= total) break;
      store_raw(row_at(first, p.out, row[u], (run.first_chunk + chunk[u]) * kChunk * sizeof(T)),
                decode_chunk<T>(run, stored[u]), kAligned || p.out.vector);
    }
  }
}

// Grid: ceil(count / block_rows) blocks of kCodecThreads. T: what rows hold, bf16 or float.
template <class T, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads)
    decode_kernel(const __grid_constant__ DecodeParams p) {
  __shared__ Place places[kMaxBlockRows];
  const int rows = rows_of_block(p.count, p.block_rows);
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kCodecThreads) {
    const std::int64_t row = std::int64_t{blockIdx.x} * p.block_rows + r;
    places[r] = place_of(p.pages, p.slots == nullptr ? p.first + row : p.slots[row]);
  }
  sync_block();
  for (int i = 0; i < p.run_count; ++i)
    decode_run<T, kAligned>(p, known_run<kAligned>(p.runs[i]), places, rows);
}

}  // namespace lathe::cuda
