// A warp's ring of weight chunks in shared memory, and the warp that loads tokens.
#pragma once

#include "kernels/cuda/sm90/matmul/few/few_config.cuh"

namespace lathe::cuda {

/// Loads the stages of a warp's units of weight rows, one after the other. A stage has row g + 8 i
/// of a unit (matmul_row()) at 128 (g + 8 i). Its 16 bytes of columns 32 c to 32 c + 31 are in
/// place c ^ g, so that ldmatrix reads eight rows without bank conflicts.
template <class T>
struct FewLoader {
  using Row = typename T::Row;

  const FewParams& f;
  const MatmulParams& p;
  const FewShare<T>& share;
  int lane;
  std::int32_t unit;     // to load
  std::int32_t columns;  // of the unit left to load, from the lane's first piece on
  // The lane's pieces of the next stage: 16 bytes of row lane / 8, and of every fourth row after
  // it; and of scales.
  const std::uint8_t *codes, *scales;
  std::int32_t left;      // chunks of the unit
  std::uint32_t to, end;  // the next stage, and the ring's end
  std::uint32_t codes_at, scales_at;
  std::int32_t scale_chunk;  // of the lane's piece of scales, in a stage; past it: none
  // The lane's 8 bytes of zeros, if the weights have any, as above.
  const std::uint8_t* zeros = nullptr;
  std::uint32_t zeros_at = 0;
  std::int32_t zero_chunk = kFewDepth;

  __device__ FewLoader(const FewParams& params, const FewShare<T>& of_block, int warp, int of_warp)
      : f(params), p(params.matmul), share(of_block), lane(of_warp) {
    unit = share.begin + warp;
    to = share.s.ring(warp);
    end = to + T::kStages * T::kStageBytes;
    const int row = lane / 8, piece = lane & 7;
    // Rows + 4 have another place; rows + 8 the same.
    codes_at = static_cast<std::uint32_t>(row * 128 + (piece ^ row) * 16);
    scale_chunk = lane / p.scale_bytes;
    scales_at = static_cast<std::uint32_t>(T::kCodeBytes + scale_chunk * T::kScaleBytes +
                                           (lane - scale_chunk * p.scale_bytes) * 16);
    if (Row::kHasZeros && p.zero_bytes > 0) {
      zero_chunk = lane / (2 * p.zero_bytes);
      zeros_at =
          static_cast<std::uint32_t>(T::kZerosAt + zero_chunk * T::kZeroBytes + zero_piece() * 8);
    }
    begin();
  }
  /// Among the 8-byte pieces of a chunk's zeros of 16 rows.
  __device__ std::int32_t zero_piece() const { return lane - zero_chunk * 2 * p.zero_bytes; }
  __device__ void begin() {
    if (unit >= share.end) return;
    left = p.chunks;
    columns = p.k - (lane & 7) * 32;
    const std::int32_t tile = unit / p.tiles;
    std::int32_t row = (unit - tile * p.tiles) * kFewRows;
    if (p.gate_step == 1) row /= 2;  // half of the unit is the other weight's
    const std::int32_t group = share.tokens(tile).group;
    codes = f.codes + group * f.group_bytes +
            (row + (p.gate_step == 2 ? lane / 8 * 2 : lane / 8)) * f.row_bytes + (lane & 7) * 16;
    // 16 rows' scales of a chunk are scale_bytes pieces.
    std::int32_t piece = lane - scale_chunk * p.scale_bytes;
    const bool second = p.gate_step == 1 && 2 * piece >= p.scale_bytes;
    if (second) piece -= p.scale_bytes / 2;
    scales = static_cast<const std::uint8_t*>(p.weights[second ? 1 : 0].scales) +
             (std::int64_t{group} * p.chunks + scale_chunk) * f.scale_step + row * p.scale_bytes +
             piece * 16;
    if constexpr (Row::kHasZeros) begin_zeros(group, row);
  }
  /// row: the unit's first, among the rows of one weight.
  __device__ void begin_zeros(std::int32_t group, std::int32_t row) {
    if (zero_chunk >= kFewDepth) return;
    std::int32_t piece = zero_piece();
    const bool second = p.gate_step == 1 && piece >= p.zero_bytes;
    if (second) piece -= p.zero_bytes;
    zeros = p.weights[second ? 1 : 0].zeros +
            (std::int64_t{group} * p.chunks + zero_chunk) * zero_step() + row * p.zero_bytes +
            piece * 8;
  }
  /// Bytes of a chunk's zeros.
  __device__ std::int64_t zero_step() const {
    return std::int64_t{p.weights[0].packed_rows} * p.zero_bytes;
  }
  /// Loads the next stage, if there is one, and ends a copy group.
  __device__ __forceinline__ void load() {
    if (unit < share.end) {
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t at =
            to + (codes_at ^ (i % 2 == 0 ? 0u : 64u)) + static_cast<std::uint32_t>(i * 512);
        copy_async(at, codes + (i % 2) * f.four_rows + (i / 2) * f.eight_rows, columns > 0);
      }
      codes += 64 * kFewDepth;
      if (scale_chunk < (left < kFewDepth ? left : kFewDepth)) {
        copy_async(to + scales_at, scales, true);
      }
      scales += kFewDepth * f.scale_step;
      if constexpr (Row::kHasZeros) {
        if (zero_chunk < (left < kFewDepth ? left : kFewDepth)) copy_async_8(to + zeros_at, zeros);
        zeros += kFewDepth * zero_step();
      }
      to += T::kStageBytes;
      if (to == end) to -= T::kStages * T::kStageBytes;
      columns -= kFewDepth * kFewColumns;
      left -= kFewDepth;
      if (left <= 0) {
        unit += T::kWarps;
        begin();
      }
    }
    end_copy_group();
  }
};

/// Loads the tokens of the block's tiles. Runs in one thread.
template <class T>
__device__ void load_few_tokens(const FewParams& f, const FewShare<T>& share) {
  const MatmulParams& p = f.matmul;
  const std::uint64_t policy = cache_policy(false);
  const auto bytes = static_cast<std::uint32_t>(2 * p.k);
  wait_for_previous();
  int slot = 0;
  std::uint32_t parity = 1;  // of the slot's last use
  const std::int32_t end = (share.end + p.tiles - 1) / p.tiles;
  for (std::int32_t tile = share.begin / p.tiles; tile < end; ++tile) {
    barrier_wait(share.s.empty(slot), parity);
    const FewTokens t = share.tokens(tile);
    barrier_expect(share.s.full(slot), bytes * static_cast<std::uint32_t>(t.end - t.begin));
    std::uint32_t to = share.s.tokens(f, slot);
    for (std::int32_t row = t.begin; row < t.end; ++row) {
      copy_row(to, f.x + row * f.x_stride, bytes, share.s.full(slot), policy);
      to += static_cast<std::uint32_t>(f.x_row);
    }
    if (++slot == f.x_slots) {
      slot = 0;
      parity ^= 1;
    }
  }
}

}  // namespace lathe::cuda
