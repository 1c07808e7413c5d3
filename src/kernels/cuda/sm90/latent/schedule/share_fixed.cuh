// Shares work tiles that are split by their own keys alone, so that a request's bits do not depend
// on the batch.
//
// Work tiles of equal length are split equally; a split is called a piece here. The largest pieces
// left go to the least loaded workers, one each, a quarter of the workers at a time. If there are
// too many pieces, they go to workers in the order of their work tiles.
#pragma once

#include "kernels/cuda/sm90/latent/schedule/share_block.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

class FixedSharing {
  static constexpr int kPlaces = kShareWorkers + 1;
  static constexpr int kPieces = 2 * kShareTiles;  // most pieces that are dealt by size

  struct Arrays {
    alignas(16) std::uint32_t sizes[kShareTiles];  // by work tile
    alignas(16) std::int32_t loads[2][kPlaces];    // used alternately
    std::int32_t keys[kShareTiles], each[kShareTiles], first[kShareTiles];
    std::int32_t order[kShareTiles];  // work tiles by size of their pieces, largest first
    std::int32_t start[kShareTiles];  // first piece of order[i]
    std::int32_t base[kPlaces];       // first item of a worker
    std::int32_t place[kPieces];      // of a piece: its worker and item index
  };

  const LatentParams& p;
  const LatentSharing& to;
  Arrays& s;
  const int me = static_cast<int>(threadIdx.x);

  /// How a work tile is split.
  struct Pieces {
    std::int32_t keys = 0, each = 0, count = 0;  // each: steps

    __device__ bool split() const { return count > 1; }
  };

 public:
  using Shared = Arrays;
  __device__ FixedSharing(const LatentParams& params, const LatentSharing& sharing, Arrays& arrays)
      : p(params), to(sharing), s(arrays) {}

  __device__ void run() {
    if (p.work_tiles > static_cast<int>(blockDim.x) || !deal()) share_in_order();
  }

 private:
  __device__ Pieces pieces_of(std::int32_t tile) const {
    if (tile >= p.work_tiles) return {};
    std::int32_t keys = keys_of(find_work_tile(p, tile));
    if (keys > to.keys) keys = to.keys;
    if (keys == 0) return {};
    const std::int32_t steps = divide_up(keys, to.step);
    std::int32_t pieces = divide_up(steps, to.fixed);
    if (pieces > kLatentFixedPieces) pieces = kLatentFixedPieces;
    const std::int32_t each = divide_up(steps, pieces);
    return {keys, each, divide_up(steps, each)};
  }
  /// number: index of the work tile's first partial.
  __device__ void store_item(std::int32_t at, std::int32_t tile, std::int32_t keys,
                             std::int32_t each, std::int32_t piece, std::int32_t number) const {
    const std::int32_t count = each * to.step, first = piece * count, left = keys - first;
    to.items[at] = {tile, first, left < count ? left : count, keys > count ? number + piece : -1};
  }
  __device__ void store_split(std::int32_t at, std::int32_t tile, std::int32_t first,
                              std::int32_t items) const {
    const LatentWorkTile u = find_work_tile(p, tile);
    // With so few items, one part.
    to.split_tiles[at] = {u.row, u.m_rows, first, static_cast<std::int16_t>(items), 0, 1};
  }

  /// Returns false, and stores nothing, if there are too many pieces.
  __device__ bool deal() {
    const Pieces own = pieces_of(me);
    const std::uint32_t size = static_cast<std::uint32_t>(own.each) * kShareTiles +
                               static_cast<std::uint32_t>(kShareTiles - 1 - me);
    s.sizes[me] = me < p.work_tiles ? size : 0;
    s.keys[me] = own.keys;
    s.each[me] = own.each;
    // For split work tiles: partials before this one's, and listed tiles before it.
    const SharePrefix parts = share_prefix(0, own.split() ? own.count : 0,
                                           me < p.work_tiles && (own.split() || own.count == 0));
    s.first[me] = parts.before;
    const std::int32_t rank = share_larger(s.sizes, p.work_tiles, size);
    // Pieces of larger work tiles, in order of size.
    if (me < p.work_tiles) s.order[rank] = me, s.start[rank] = own.count;
    sync_block();
    const SharePrefix in_order = share_prefix(1, me < p.work_tiles ? s.start[me] : 0);
    const std::int32_t pieces = in_order.all;
    if (pieces > kPieces) return false;
    s.start[me] = in_order.before;
    if (me < p.work_tiles && own.count != 1)
      store_split(parts.before2, me, parts.before, own.count);
    store_ends(parts.all2);
    sync_block();
    const bool worker = me < to.workers;
    std::int32_t load = 0, items = 0;
    const auto tile_of = [&](std::int32_t piece) {
      return share_last_not_above(s.start, p.work_tiles, piece);
    };
    const auto take = [&](std::int32_t piece) {
      s.place[piece] = items++ * kPlaces + me;
      load += to.costs.item + s.each[s.order[tile_of(piece)]] * kLatentStepCost;
    };
    if (worker && me < pieces) take(me);
    const std::int32_t at_once = divide_up(to.workers, 4);
    int turn = 0;
    LATHE_ROLLED
    for (std::int32_t dealt = to.workers; dealt < pieces; dealt += at_once, ++turn) {
      std::int32_t* loads = s.loads[turn & 1];
      if (me < kPlaces) loads[me] = worker ? load : INT32_MAX;
      sync_block();
      const std::int32_t less = share_lighter(loads, to.workers, load, me);
      if (worker && less < at_once && dealt + less < pieces) take(dealt + less);
    }
    const std::int32_t base = share_prefix(0, items).before;
    if (me <= to.workers) {
      s.base[me] = base;
      to.worker_items[me] = base;
    }
    sync_block();
    LATHE_ROLLED
    for (std::int32_t piece = me; piece < pieces; piece += static_cast<std::int32_t>(blockDim.x)) {
      const int at = tile_of(piece), tile = s.order[at];
      const int place = s.place[piece];
      store_item(s.base[place % kPlaces] + place / kPlaces, tile, s.keys[tile], s.each[tile],
                 piece - s.start[at], s.first[tile]);
    }
    return true;
  }
  __device__ void store_ends(std::int32_t from) const {
    for (std::int32_t at = from + me; at < to.split_room;
         at += static_cast<std::int32_t>(blockDim.x)) {
      to.split_tiles[at].parts = 0;
    }
  }

  /// Calls visit(tile, its pieces, items, partials and listed work tiles before it) for each of
  /// this thread's work tiles. Returns the totals over all threads.
  template <class Visit>
  __device__ SharePrefix for_all(const Visit& visit) {
    SharePrefix all{};
    std::int32_t items = 0;
    const auto threads = static_cast<std::int32_t>(blockDim.x);
    LATHE_ROLLED
    for (std::int32_t first = 0; first < p.work_tiles; first += threads) {
      const std::int32_t tile = first + me;
      const Pieces of = pieces_of(tile);
      const bool listed = tile < p.work_tiles && of.count != 1;
      const SharePrefix before = share_prefix(0, of.count, listed);
      const SharePrefix parts = share_prefix(1, of.split() ? of.count : 0);
      if (tile < p.work_tiles) {
        visit(tile, of, items + before.before, all.all + parts.before, all.all2 + before.before2);
      }
      items += before.all;
      all.all += parts.all;
      all.all2 += before.all2;
    }
    all.before = items;
    return all;
  }
  __device__ void share_in_order() {
    const SharePrefix all = for_all([&](std::int32_t tile, const Pieces& of, std::int32_t at,
                                        std::int32_t number, std::int32_t listed) {
      LATHE_ROLLED
      for (std::int32_t i = 0; i < of.count; ++i) {
        store_item(at + i, tile, of.keys, of.each, i, number);
      }
      if (of.count != 1) store_split(listed, tile, number, of.count);
    });
    const std::int32_t items = all.before;
    for (int w = me; w <= to.workers; w += static_cast<int>(blockDim.x)) {
      to.worker_items[w] = std::int64_t{items} * w / to.workers;
    }
    store_ends(all.all2);
  }
};

static __global__ void __launch_bounds__(kShareTiles, 1)
    latent_share_fixed_kernel(const __grid_constant__ LatentParams p,
                              const __grid_constant__ LatentSharing to) {
  __shared__ FixedSharing::Shared arrays;
  FixedSharing(p, to, arrays).run();
}

}  // namespace lathe::cuda
