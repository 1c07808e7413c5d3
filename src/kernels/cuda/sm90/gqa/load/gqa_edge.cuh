// Tiles at the edge of what the rows of an M block see. Some keys there are masked for some rows
// and not for others, so values that are not finite need care (attention/nonfinite.cuh).
#pragma once

#include "kernels/cuda/sm90/attention/nonfinite.cuh"
#include "kernels/cuda/sm90/gqa/load/gqa_ring.cuh"
#include "kernels/cuda/sm90/gqa/schedule/gqa_segments.cuh"

namespace lathe::cuda {

/// The keys of a tile that all rows of M block `b` see: begin to end - 1. limit: GqaBlock's,
/// counted from the tile's first key.
struct GqaEdge {
  int begin, end;

  __device__ GqaEdge(const GqaParams& p, const GqaBlock& b, int limit)
      : begin(static_cast<int>(p.group(static_cast<std::uint32_t>(b.head + b.m_rows - 1))) + limit -
              p.window),
        end(limit) {}
  /// Whether some row does not see some key.
  template <int kTile>
  __device__ bool any() const {
    return end < kTile || begin > 0;
  }
  /// A bit for each of keys 32 word to 32 word + 31 that some row does not see.
  __device__ std::uint32_t keys(int word) const {
    return bits_from(end - 32 * word) | ~bits_from(begin - 32 * word);
  }

  /// The same for keys 0 to 63.
  __device__ std::uint64_t first_keys() const { return std::uint64_t{keys(1)} << 32 | keys(0); }

 private:
  __device__ static std::uint32_t bits_from(int first) {
    return first <= 0 ? ~0u : first >= 32 ? 0u : ~0u << first;
  }
};

/// The values of a tile (nonfinite.cuh). N: its GqaTileFormat.
template <class N>
struct GqaValueRows {
  static constexpr int kChunks = N::kBoxBytes / 16;  // of a key in a box
  std::uint32_t values;

  /// Chunk `c` of a key's kValueBoxes * kChunks, in an order that spreads neighbouring keys over
  /// the banks.
  __device__ std::uint32_t chunk(int key, int c) const {
    return values + static_cast<std::uint32_t>(c / kChunks * N::kBoxTileBytes + key * N::kBoxBytes +
                                               (c ^ key) % kChunks * 16);
  }
  __device__ bool wild_chunk(int key, int c) const {
    return is_wild<N::kElementBytes == 1>(load_shared_u128(chunk(key, c)));
  }
  /// Whether a value of the key is not finite: a lane's share, and all of it.
  __device__ bool wild(int key, int lane) const {
    constexpr int kAll = N::kValueBoxes * kChunks;
    if constexpr (kAll <= 32) {
      return lane < kAll && wild_chunk(key, lane);
    } else {
      bool any = false;
      LATHE_UNROLL
      for (int c = 0; c < kAll; c += 32) any |= wild_chunk(key, c + lane);
      return any;
    }
  }
  __device__ bool wild(int key) const {
    bool any = false;
    LATHE_UNROLL_BY(8)
    for (int c = 0; c < N::kValueBoxes * kChunks; ++c) any |= wild_chunk(key, c);
    return any;
  }
};

/// Warps without other work that look at the values of edge tiles as soon as these are there. Wild
/// keys that some row does not see lose their bit in the stage's mask and get one in wild_at().
/// Then the warps arrive at checked_at(), which consumers await in edge tiles only. The warps
/// arrive for every tile and also release every stage, so that its parity holds for checked_at()
/// too.
template <class N>
struct GqaChecker {
  const GqaParams& p;
  const GqaRing<N>& ring;
  int warp, lane;

  __device__ void check(const GqaStage<N>& stage, const GqaEdge& edge) const {
    const GqaValueRows<N> rows{ring.values(stage.index)};
    LATHE_ROLLED
    for (int word = warp; word < N::kTile / 32; word += N::kCheckWarps) {
      const std::uint32_t mask = ring.mask_at(stage) + static_cast<std::uint32_t>(4 * word);
      const std::uint32_t seen = load_shared_u32(mask), keys = edge.keys(word) & seen;
      const bool mine = (keys >> lane & 1) != 0 && rows.wild(32 * word + lane);
      const std::uint32_t wild = warp_ballot(mine);
      if (lane == 0) {
        store_shared_u32(ring.wild_at(stage) + static_cast<std::uint32_t>(4 * word), wild);
        if (wild != 0) store_shared_u32(mask, seen & ~wild);
      }
    }
  }
  __device__ void run(std::int32_t worker) const {
    GqaSegments segments(p, worker);
    GqaSegment item;
    GqaStage<N> stage;
    while (segments.next(item)) {
      int limit = item.block.limit - item.first_key<N::kTile>();
      LATHE_ROLLED
      for (int t = 0; t < item.count; ++t, limit -= N::kTile) {
        barrier_wait(ring.values_full_at(stage.index), stage.parity);
        const GqaEdge edge(p, item.block, limit);
        if (edge.template any<N::kTile>()) check(stage, edge);
        sync_warp();
        if (lane == 0) {
          barrier_arrive(ring.checked_at(stage.index));
          barrier_arrive(ring.values_empty_at(stage.index));
        }
        stage.advance();
      }
    }
  }
};

}  // namespace lathe::cuda
