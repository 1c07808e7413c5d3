// Where the shared memory of the kernel for 64 lines on fp8 caches lies.
#pragma once

#include <cuda.h>

#include "kernels/cuda/sm90/latent/load/load_fp8_rows.cuh"

namespace lathe::cuda {

template <class Format>
struct WideFp8 {
  static constexpr int kLines = 64;
  static constexpr int kThreads = 512;
  // Threads of a warpgroup have 512 registers in all (65536 / 128). Where tiles have scales of their own, as in
  // V4, the producer needs more, and groups of values get by with less.
  static constexpr bool kScalesOfTiles = Format::kScaleTiles == 1;
  static constexpr int kScoreRegisters = kScalesOfTiles ? 112 : 104;
  static constexpr int kValueRegisters = kScalesOfTiles ? 176 : 184;
  static constexpr int kFillRegisters = kScalesOfTiles ? 48 : 40;
  static_assert(kScoreRegisters + 2 * kValueRegisters + kFillRegisters <= 512,
                "setmaxnreg would wait for ever");
  static constexpr int kValues = 512;
  static constexpr int kTileWeights = kLines * 128;
  using Ring = LatentRing<Format, 3>;

  static constexpr int kKeysAt = kDimTiles<Format> * kDimTileBytes;
  static constexpr int kWeightsAt = kKeysAt + Ring::kBuffers * LatentRows<Format>::kTileBytes;
  static constexpr int kScalesAt = kWeightsAt + Ring::kBuffers * kTileWeights;
  static constexpr int kSmallAt = kScalesAt + Ring::kBuffers * LatentRows<Format>::kScaleBytes;
  static constexpr int kNamesAt = kSmallAt + 3888;
  static constexpr int kSharedBytes = kNamesAt + LatentNames<Format>::kBytes;
  static_assert(kSharedBytes <= 232448 && kWeightsAt % 1024 == 0);

  // Of eight parts of a tile's values, those that are added beside the next tile's scores.
  static constexpr int kEarly = 1;
  static constexpr int kScoreGroup = 1, kValueGroups = 2;  // named barriers
};

template <class Format>
struct WideFp8Shared {
  using W = WideFp8<Format>;
  std::uint32_t q;  // the first of all

  __device__ typename W::Ring ring() const {
    return {q + W::kKeysAt, small(16), small(3840), small(88), q + W::kNamesAt};
  }
  // What lies beside tile n's keys, free when those are.
  __device__ std::uint32_t weights(unsigned n) const {
    return q + W::kWeightsAt + W::Ring::buffer(n) * W::kTileWeights;
  }
  __device__ std::uint32_t scales(unsigned n) const {
    return q + W::kScalesAt + W::Ring::buffer(n) * LatentRows<Format>::kScaleBytes;
  }
  /// Its scores, and weights, are made.
  __device__ std::uint32_t scored(unsigned n) const { return small(112 + 8 * W::Ring::buffer(n)); }
  __device__ std::uint32_t weighed(unsigned n) const { return small(64 + 8 * W::Ring::buffer(n)); }
  /// n + 1 where references rise with tile n.
  __device__ std::uint32_t risen(unsigned n) const { return small(136 + 4 * W::Ring::buffer(n)); }
  /// What sums are to be multiplied by because of that. [64] f32
  __device__ std::uint32_t factors(unsigned n) const {
    return small(512 + 256 * W::Ring::buffer(n));
  }

  __device__ std::uint32_t small(std::uint32_t at) const { return q + W::kSmallAt + at; }
  __device__ std::uint32_t q_full() const { return small(0); }
  __device__ std::uint32_t q_empty() const { return small(8); }
  /// The scores' warps have all said whether references rise.
  __device__ std::uint32_t voted() const { return small(152); }
  /// The tile before which lines have no reference.
  __device__ std::uint32_t rising() const { return small(148); }
  /// What an item's outputs need is there, and has been read.
  __device__ std::uint32_t outputs_full() const { return small(160); }
  __device__ std::uint32_t outputs_empty() const { return small(168); }
  __device__ std::uint32_t facts() const { return small(176); }  // of items in turns
  __device__ std::uint32_t other_facts() const { return small(176 + LatentItemFacts::kBytes); }
  __device__ std::uint32_t references() const { return small(256); }  // [64] f32, log2
  /// The sum of a line's weights, then what is to be multiplied into its outputs. [64] f32
  __device__ std::uint32_t outputs() const { return small(1280); }
  /// What the sums of an item that is done refer to. [64] f32, log2
  __device__ std::uint32_t last_references() const { return small(3584); }
  /// Where a line's outputs begin, in elements, or -1. [64] i64
  __device__ std::uint32_t places() const { return small(1536); }
  __device__ std::uint32_t rows() const { return small(2048); }  // of lines in their unit [64] i32
  /// 1 where a line has seen no key, and so has no reference. [64] u32
  __device__ std::uint32_t unseen() const { return small(3328); }
  __device__ std::uint32_t columns() const { return small(2304); }  // [4 warps][64] f32
};

}  // namespace lathe::cuda
