// m64 on fp8: tiles, shared-memory layout and register budget.
#pragma once

#include <cuda.h>

#include "kernels/cuda/sm90/latent/load/load_fp8_rows.cuh"

namespace lathe::cuda {

template <class Format>
struct M64Fp8 {
  static constexpr int kMRows = 64;
  static constexpr int kThreads = 512;
  // A block of 512 threads has 512 registers for the four threads of equal rank in its warpgroups
  // (65536 / 128). Where each tile of 64 dims has its own scale, as in V4, the producer needs more
  // of them and the value warpgroups get fewer.
  static constexpr bool kScalesOfTiles = Format::kScaleTiles == 1;
  static constexpr int kScoreRegisters = kScalesOfTiles ? 112 : 104;
  static constexpr int kValueRegisters = kScalesOfTiles ? 176 : 184;
  static constexpr int kProducerRegisters = kScalesOfTiles ? 48 : 40;
  static_assert(kScoreRegisters + 2 * kValueRegisters + kProducerRegisters <= 512,
                "setmaxnreg would wait for ever");
  static constexpr int kValues = 512;
  static constexpr int kPTileBytes = kMRows * 128;
  using Ring = LatentRing<Format, 3>;

  static constexpr int kKeysAt = kDimTiles<Format> * kDimTileBytes;
  static constexpr int kPAt = kKeysAt + Ring::kBuffers * LatentRows<Format>::kTileBytes;
  static constexpr int kScalesAt = kPAt + Ring::kBuffers * kPTileBytes;
  static constexpr int kSmallAt = kScalesAt + Ring::kBuffers * LatentRows<Format>::kScaleBytes;
  static constexpr int kAddressesAt = kSmallAt + 3888;
  static constexpr int kSharedBytes = kAddressesAt + LatentRowAddresses<Format>::kBytes;
  static_assert(kSharedBytes <= 232448 && kPAt % 1024 == 0);

  // Of the eight parts of a tile's PV, those that overlap the next tile's QK.
  static constexpr int kEarly = 1;
  // Named barriers; each value warpgroup also has one of its own.
  static constexpr int kScoreGroup = 1, kValueGroups = 2, kFirstValueGroup = 3;
};

template <class Format>
struct M64Fp8Shared {
  using W = M64Fp8<Format>;
  std::uint32_t q;  // address of the first array

  __device__ typename W::Ring ring() const {
    return {q + W::kKeysAt, small(16), small(3840), small(88), q + W::kAddressesAt};
  }
  // P shares tile n's buffer number, and is freed with the tile's keys.
  __device__ std::uint32_t p_tile(unsigned n) const {
    return q + W::kPAt + W::Ring::buffer(n) * W::kPTileBytes;
  }
  __device__ std::uint32_t scales(unsigned n) const {
    return q + W::kScalesAt + W::Ring::buffer(n) * LatentRows<Format>::kScaleBytes;
  }
  /// Barriers: S is done; P is ready.
  __device__ std::uint32_t scored(unsigned n) const { return small(112 + 8 * W::Ring::buffer(n)); }
  __device__ std::uint32_t p_full(unsigned n) const { return small(64 + 8 * W::Ring::buffer(n)); }
  /// n + 1 if row maxes rise with tile n.
  __device__ std::uint32_t risen(unsigned n) const { return small(136 + 4 * W::Ring::buffer(n)); }
  /// n + 1, with risen(n), if values of tile n's masked keys are not finite (nonfinite.cuh).
  __device__ std::uint32_t wild(unsigned n) const { return small(240 + 4 * W::Ring::buffer(n)); }
  /// Factors of the accumulator if they rise. [64] f32
  __device__ std::uint32_t factors(unsigned n) const {
    return small(512 + 256 * W::Ring::buffer(n));
  }

  __device__ std::uint32_t small(std::uint32_t at) const { return q + W::kSmallAt + at; }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  /// Barrier: all score warps have voted on rising row maxes.
  __device__ std::uint32_t voted() const { return small(152); }
  /// The tile before which rows have no row max yet.
  __device__ std::uint32_t rising() const { return small(148); }
  /// Barriers: the epilogue's inputs are ready; they have been read.
  __device__ std::uint32_t outputs_full() const { return small(160); }
  __device__ std::uint32_t outputs_empty() const { return small(168); }
  __device__ std::uint32_t info() const { return small(176); }  // two work items, alternating
  __device__ std::uint32_t other_info() const { return small(176 + LatentWorkInfo::kBytes); }
  __device__ std::uint32_t row_maxes() const { return small(256); }  // [64] f32, log2
  /// Row sums of P, then the factor of an M row's outputs. [64] f32
  __device__ std::uint32_t outputs() const { return small(1280); }
  /// Row maxes of the finished work item. [64] f32, log2
  __device__ std::uint32_t last_row_maxes() const { return small(3584); }
  /// Where an M row's output begins, in elements, or -1. [64] i64
  __device__ std::uint32_t places() const { return small(1536); }
  __device__ std::uint32_t rows() const {
    return small(2048);
  }  // M row within the work tile [64] i32
  /// 1 if an M row has seen no key, and so has no row max. [64] u32
  __device__ std::uint32_t unseen() const { return small(3328); }
  __device__ std::uint32_t columns() const { return small(2304); }  // [4 warps][64] f32
};

}  // namespace lathe::cuda
