// Rows of heads from one number format to another, their rotary parts rotated: q's way to the
// attention kernel, and rope in place.
#pragma once

#include "kernels/cuda/sm90/codec/block_rows.cuh"
#include "kernels/cuda/sm90/codec/rotate_chunk.cuh"

namespace lathe::cuda {

// Stores a chunk as Out. `same`: the values are In's own bits, so equal formats copy them.
template <class In, class Out>
struct StoreRotated;
template <class In>
struct StoreRotated<In, e4m3> {
  static __device__ __forceinline__ void run(std::byte* at, const Raw<In>&, const float (&x)[8],
                                             bool, float inverse_scale, bool vector) {
    store(at, to_raw_e4m3(x, inverse_scale), vector);
  }
};
template <>
struct StoreRotated<bf16, bf16> {
  static __device__ __forceinline__ void run(std::byte* at, const Raw<bf16>& raw,
                                             const float (&x)[8], bool same, float, bool vector) {
    store(at, same ? raw.v : to_raw_bf16(x).v, vector);
  }
};
template <>
struct StoreRotated<float, bf16> {
  static __device__ __forceinline__ void run(std::byte* at, const Raw<float>&, const float (&x)[8],
                                             bool, float, bool vector) {
    store(at, to_raw_bf16(x).v, vector);
  }
};
template <class In>
struct StoreRotated<In, float> {
  static __device__ __forceinline__ void run(std::byte* at, const Raw<In>&, const float (&x)[8],
                                             bool, float, bool vector) {
    for (int i = 0; i < 2; ++i) {
      const uint4 v{float_to_bits(x[4 * i]), float_to_bits(x[4 * i + 1]),
                    float_to_bits(x[4 * i + 2]), float_to_bits(x[4 * i + 3])};
      store(at + 16 * i, v, vector);
    }
  }
};

struct RotateBlock {
  std::int32_t positions[kMaxBlockRows];  // -1: a hole
};

template <class In, class Out, bool kAligned>
struct ChunkRotator {
  const RotateParams& p;
  const RotateBlock& block;
  std::byte* in;  // rows of this block
  std::byte* out;

  __device__ __forceinline__ const std::byte* in_at(int row, int chunk) const {
    return row_at(in, p.in, row, static_cast<std::uint32_t>(chunk) * kChunk * sizeof(In));
  }
  __device__ __forceinline__ std::byte* out_at(int row, int chunk) const {
    return row_at(out, p.out, row, static_cast<std::uint32_t>(chunk) * kChunk * sizeof(Out));
  }
  __device__ __forceinline__ void put(int row, int chunk, const Raw<In>& raw, const float (&x)[8],
                                      bool same) const {
    StoreRotated<In, Out>::run(out_at(row, chunk), raw, x, same, p.inverse_scale,
                               kAligned || p.out.vector);
  }

  __device__ __forceinline__ void rotate(const Raw<In>& raw, int row, int chunk) const {
    float x[8];
    const std::int32_t position = block.positions[row];
    if (position < 0) {
      if (p.in_place) return;
      for (int i = 0; i < 8; ++i) x[i] = 0;
      return put(row, chunk, {}, x, false);
    }
    to_floats(raw, x);
    const auto head = static_cast<std::uint32_t>(chunk);
    const int local = static_cast<int>(head - p.head_chunks(head) * p.head_chunks.divisor);
    const int c = local - p.rope.first;
    if (c < 0 || c >= 2 * p.rope.half) return put(row, chunk, raw, x, true);
    if (p.rope.interleaved) {
      rotate_interleaved<kAligned>(p.rope, position, c, x);
      return put(row, chunk, raw, x, false);
    }
    // One thread turns both halves of a pair, so that rows may be rotated in place.
    if (c >= p.rope.half) return;
    const int other = chunk + p.rope.half;
    const Raw<In> partner = load_raw<In>(in_at(row, other), kAligned || p.in.vector);
    float high[8];
    to_floats(partner, high);
    rotate_halves<kAligned>(p.rope, position, c, x, high);
    put(row, chunk, raw, x, false);
    put(row, other, partner, high, false);
  }
};

// Grid: (ceil(rows / block_rows), ceil(chunks / slice)) blocks of kCodecThreads.
template <class In, class Out, bool kAligned>
static __global__ void __launch_bounds__(kCodecThreads, sizeof(In) == 2 ? 3 : 2)
    rotate_kernel(const __grid_constant__ RotateParams p) {
  constexpr int kCount = kRound<kAligned>;
  __shared__ RotateBlock block;
  const int rows = rows_of_block(p.rows, p.block_rows);
  const std::int64_t first_row = std::int64_t{blockIdx.x} * p.block_rows;
  for (int r = static_cast<int>(threadIdx.x); r < rows; r += kCodecThreads) {
    std::int32_t position = position_of(p.rope, first_row + r);
    if (p.slots != nullptr) {
      const std::int64_t slot = p.slots[first_row + r];
      if (slot < 0 || slot >= p.slot_count) position = -1;
    }
    block.positions[r] = position;
  }
  sync_block();
  const ChunkRotator<In, Out, kAligned> rotator{p, block, block_row(p.in, p.block_rows),
                                                block_row(p.out, p.block_rows)};
  const int first_chunk = static_cast<int>(blockIdx.y) * p.slice;
  const std::uint32_t total = static_cast<std::uint32_t>(rows) * p.slice_chunks.divisor;
  for (std::uint32_t base = threadIdx.x; base < total; base += kCodecThreads * kCount) {
    Raw<In> raw[kCount];
    int row[kCount], chunk[kCount];
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      std::uint32_t c;
      const std::uint32_t i = base + static_cast<std::uint32_t>(u) * kCodecThreads;
      row[u] = static_cast<int>(row_of(p.slice_chunks, i, c));
      chunk[u] = first_chunk + static_cast<int>(c);
      if (i >= total || chunk[u] >= p.chunks) row[u] = -1;
      raw[u] = {};
      if (row[u] >= 0)
        raw[u] = load_raw<In>(rotator.in_at(row[u], chunk[u]), kAligned || p.in.vector);
    }
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      if (row[u] >= 0) rotator.rotate(raw[u], row[u], chunk[u]);
    }
  }
}

}  // namespace lathe::cuda
