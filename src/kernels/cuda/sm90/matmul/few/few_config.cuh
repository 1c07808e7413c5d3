// Shared memory and work of the grouped GEMM for few tokens.
#pragma once

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/matmul/few/few_params.h"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// kWarps: warps that multiply; one more loads tokens.
template <class RowType, int kWarpCount>
struct FewTile {
  using Row = RowType;
  static constexpr int kTokens = kFewTokens;
  static constexpr int kWarps = kWarpCount;
  static constexpr int kStages = kFewStages;
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kCodeBytes = kFewRows * 64 * kFewDepth;     // of a stage
  static constexpr int kScaleBytes = kFewRows * Row::kScaleBytes;  // of a chunk
  static constexpr int kZeroBytes = Row::kHasZeros ? kFewRows * kMatmulPackedZero : 0;
  static constexpr int kZerosAt = kCodeBytes + kFewDepth * kScaleBytes;
  static constexpr int kRowBytes = Row::kScaleBytes + (Row::kHasZeros ? kMatmulPackedZero : 0);
  static constexpr int kStageBytes = few_stage_bytes(kRowBytes);
  static constexpr int kGroupsAt = 4 * 8;  // after the barriers
  static constexpr int kTokensAt = few_tokens_at(kRowBytes, kWarps);
  static constexpr int kRingsAt = kTokensAt - kWarps * kStages * kStageBytes;
};

/// Shared memory addresses of a block.
template <class T>
struct FewShared {
  std::uint32_t base;

  __device__ std::uint32_t full(int slot) const {
    return base + static_cast<std::uint32_t>(8 * slot);
  }
  __device__ std::uint32_t empty(int slot) const { return full(2 + slot); }
  __device__ std::uint32_t tiles_before(std::int32_t group) const {
    return base + T::kGroupsAt + static_cast<std::uint32_t>(4 * group);
  }
  __device__ std::uint32_t ring(int warp) const {
    return base + static_cast<std::uint32_t>(T::kRingsAt + warp * T::kStages * T::kStageBytes);
  }
  __device__ std::uint32_t tokens(const FewParams& f, int slot) const {
    return base + static_cast<std::uint32_t>(T::kTokensAt + slot * kFewTokens * f.x_row);
  }
};

/// A tile of a group's tokens.
struct FewTokens {
  std::int32_t group, begin, end;
};

/// A block's share of all units of 16 weight rows by a tile of tokens. Units of a tile are
/// neighbours, so a block meets few tiles.
template <class T>
struct FewShare {
  const MatmulParams& p;
  FewShared<T> s;
  std::int32_t begin, end;  // units

  __device__ FewShare(const MatmulParams& params, const FewShared<T>& shared)
      : p(params), s(shared) {
    const std::int64_t units = std::int64_t{before(p.groups)} * p.tiles;
    const std::int64_t block = blockIdx.x, blocks = gridDim.x;
    begin = static_cast<std::int32_t>(units * block / blocks);
    end = static_cast<std::int32_t>(units * (block + 1) / blocks);
  }
  __device__ std::int32_t before(std::int32_t group) const {
    return static_cast<std::int32_t>(load_shared_u32(s.tiles_before(group)));
  }
  __device__ FewTokens tokens(std::int32_t tile) const {
    std::int32_t group = 0;
    for (std::int32_t step = kMatmulGroups; step > 0; step /= 2) {
      if (group + step < p.groups && before(group + step) <= tile) group += step;
    }
    const bool all = p.offsets == nullptr;
    const std::int32_t first = (all ? 0 : p.offsets[group]) + (tile - before(group)) * kFewTokens;
    const std::int32_t last = all ? p.m : p.offsets[group + 1];
    return {group, first, first + kFewTokens < last ? first + kFewTokens : last};
  }
};

}  // namespace lathe::cuda
