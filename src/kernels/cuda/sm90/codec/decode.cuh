// Decodes slots of pages to rows.
#pragma once

#include "base/dtype.h"
#include "kernels/cuda/sm90/codec/batch.cuh"
#include "kernels/cuda/sm90/codec/cache_hints.cuh"

namespace lathe::cuda {

// A chunk's codes and scale, loaded but not converted: converting here would wait for the loads.
struct StoredChunk {
  uint4 codes;          // 16 bytes of bf16, 8 of e4m3, 4 of e2m1
  std::uint32_t scale;  // bits of an f32, or an exponent byte
};

template <RunKind kKind>
__device__ __forceinline__ StoredChunk load_stored(const RunParams& run, Address values,
                                                   Address scales, std::uint32_t chunk) {
  StoredChunk out{{0, 0, 0, 0}, float_to_bits(run.scale)};
  if constexpr (kKind == RunKind::bf16) {
    out.codes = load_value<uint4>(run, values + 16 * Address{chunk}, run.vector);
  } else if constexpr (kKind == RunKind::e2m1_ue8m0) {
    out.codes.x = load_value<std::uint32_t>(run, values + 4 * Address{chunk}, run.vector);
  } else {
    const uint2 codes = load_value<uint2>(run, values + 8 * Address{chunk}, run.vector);
    out.codes.x = codes.x;
    out.codes.y = codes.y;
  }
  if constexpr (kTiled<kKind>) {
    const std::uint32_t tile =
        run.first_tile + (run.tile_shift == kWideTile ? 0 : chunk >> run.tile_shift);
    out.scale =
        kKind == RunKind::e4m3_f32
            ? load_scale_bits<std::uint32_t>(run, scales + 4 * Address{tile}, run.vector_scale)
            : load_scale_bits<unsigned char>(run, scales + tile, true);
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
        // Scale byte 0 is 2^-127, a subnormal bf16.
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

template <class T, RunKind kKind, int kCount, bool kWhole>
__device__ __forceinline__ void decode_batch(const DecodeParams& p, const RunParams& run,
                                             std::int64_t first_row, const Hold& hold) {
  const std::int64_t row = first_row + hold.row;
  const Place place = place_of(
      p.pages, p.slots == nullptr ? static_cast<std::int32_t>(p.first + row) : p.slots[row]);
  const Address values = place.part(run.start, run.step);
  const Address scales = place.part(run.scale_start, run.scale_step);
  StoredChunk stored[kCount];
  LATHE_UNROLL
  for (std::uint32_t u = 0; u < kCount; ++u) {
    stored[u] = load_stored<kKind>(run, values, scales, hold.chunk + u * hold.step);
  }
  if constexpr (kScaleWord<kKind, kCount>) {  // one word instead of a byte per tile
    const uint2 word = load_scale_bits<uint2>(run, scales, true);
    LATHE_UNROLL
    for (std::uint32_t u = 0; u < kCount; ++u) {
      stored[u].scale = permute_bytes(word.x, word.y, 0x4440 + u) & 0xffu;
    }
  }
  if (!hold.has) return;
  const Address out =
      row_address(p.out, row, (run.first_chunk + hold.chunk) * (kChunk * sizeof(T)));
  LATHE_UNROLL
  for (std::uint32_t u = 0; u < kCount; ++u) {
    const Raw<T> raw = place.hole ? Raw<T>{} : decode_chunk<T, kKind>(stored[u]);
    store_row<T>(run, out + u * hold.step * (kChunk * sizeof(T)), raw, kWhole || p.out.vector);
  }
}

template <class T, RunKind kKind, bool kWhole>
__device__ __forceinline__ void decode_run(const DecodeParams& p, const RunParams& run,
                                           std::int64_t first_row, std::uint32_t rows,
                                           WarpBatches& batches) {
  constexpr Rounds kRounds = decode_rounds(kWhole, kKind);
  batches.run(run.lanes.batches, [&](std::uint32_t batch) {
    const auto hold = Hold::of<kWhole>(run.lanes, batch, rows);
    if (kRounds.many == kRounds.few || run.lanes.rounds == kRounds.many) {
      decode_batch<T, kKind, kRounds.many, kWhole>(p, run, first_row, hold);
    } else {
      decode_batch<T, kKind, kRounds.few, kWhole>(p, run, first_row, hold);
    }
  });
}

// Blocks per SM, which limits registers. mla_fp4 has few bytes per lane in flight, so it runs more
// lanes.
template <class T, RunKind kFirst>
constexpr int decode_blocks() {
  if (sizeof(T) == 4) return 3;
  return kFirst == RunKind::e2m1_ue8m0 ? 6 : 4;
}

// Grid: ceil(count / block_rows) blocks of p.threads. T: type of the rows, bf16 or float. kFirst
// and kSecond: how the runs are stored.
template <class T, RunKind kFirst, RunKind kSecond, bool kWhole>
static __global__ void __launch_bounds__(kCodecThreads, (decode_blocks<T, kFirst>()))
    decode_kernel(const __grid_constant__ DecodeParams p) {
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  const std::uint32_t rows = rows_of_block(p.count, first_row, p.block_rows);
  prefetch_list(p.slots, first_row, p.block_rows, p.count);
  WarpBatches batches;
  constexpr Hints kHints = decode_hints(kFirst, kSecond);
  decode_run<T, kFirst, kWhole>(p, known_run<kFirst, kWhole>(p.runs[0], kHints), first_row, rows,
                                batches);
  if (p.run_count == 1) return;
  decode_run<T, kSecond, kWhole>(p, known_run<kSecond, kWhole>(p.runs[1], kHints), first_row, rows,
                                 batches);
}

template <bool kWhole>
auto decode_kernel_of(const DecodeParams& p, DType dtype) {
  constexpr RunKind kTile = RunKind::e4m3_f32;
  if (p.runs[0].kind == kTile && p.run_count == 1) {
    return dtype == DType::bf16 ? decode_kernel<bf16, kTile, kTile, kWhole>
                                : decode_kernel<float, kTile, kTile, kWhole>;
  }
  return visit_kinds(p.runs, [&](auto first, auto second) {
    return dtype == DType::bf16 ? decode_kernel<bf16, first, second, kWhole>
                                : decode_kernel<float, first, second, kWhole>;
  });
}
/// The kernel instance for a call. dtype: of the rows.
inline auto decode_kernel_of(const DecodeParams& p, DType dtype) {
  return p.whole ? decode_kernel_of<true>(p, dtype) : decode_kernel_of<false>(p, dtype);
}

}  // namespace lathe::cuda
