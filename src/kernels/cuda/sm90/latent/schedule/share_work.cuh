// Shares work tiles among workers by the cost of their keys, in one block with a thread per work
// tile.
//
// Chooses among three ways by the cost of the most loaded worker plus a combine:
//
//   equal     where all work tiles have as many steps: each in as many items as cut_latent() would
//             choose for such lengths, consecutive ones to a worker
//   pieces    up to half as many work tiles as workers: each in equal items, one a worker
//   moved     the largest work tile left goes to the worker that has least, round by round; then
//             workers above a limit hand the end of their largest work tile to workers below it
//
// For `moved`, think of the handed-on parts as a line, largest first, and of the room of the
// workers below the limit as a second line of equal length: a piece ends where a part or a room
// ends.
#pragma once

#include "kernels/cuda/sm90/latent/combine/partials.cuh"
#include "kernels/cuda/sm90/latent/schedule/share_block.cuh"
#include "kernels/cuda/sm90/latent/schedule/work_tile.cuh"

namespace lathe::cuda {

class WorkSharing {
  static constexpr std::int32_t kStep = kLatentStepCost;
  static constexpr std::int32_t kLeastRoom = 2 * kStep;  // least room for another's keys
  static constexpr int kPlaces = kShareWorkers + 1;
  // A schedule with splits must cost at most this fraction of one without: costs are estimates.
  static constexpr float kPays = 0.97f;

  struct Arrays {
    alignas(16) std::uint32_t sizes[kShareTiles];  // by work tile
    std::int32_t steps[kShareTiles];
    std::int32_t keys[kShareTiles];
    std::int32_t order[kShareTiles];             // work tiles, largest first
    std::int32_t worker_of[kShareTiles];         // by work tile; later a work tile's first item
    alignas(16) std::int32_t loads[2][kPlaces];  // used alternately
    // Of workers, least loaded first. keep: steps of the largest work tile that stay.
    std::int32_t place[kPlaces];  // by worker
    std::int32_t load[kPlaces], largest[kPlaces], keep[kPlaces], tiles[kPlaces], base[kPlaces];
    // Of handed-on parts: start on the line, steps, first and last piece.
    std::int32_t begin[kPlaces], excess[kPlaces], first[kPlaces], last[kPlaces];
    float costs[32];
    std::uint32_t fits[2][32];  // used alternately
  };

  const LatentParams& p;
  const LatentSharing& to;
  Arrays& s;
  const int me = static_cast<int>(threadIdx.x);  // index of a work tile, or of a worker
  const int lane = me % 32, warp = me / 32, warps = static_cast<int>(blockDim.x) / 32;
  std::int32_t keys = 0, steps = 0;  // of work tile `me`
  std::int32_t rank = 0;             // of work tile `me` by size, where whole work tiles are dealt
  std::int32_t some = 0;             // number of work tiles with keys
  std::int32_t total = 0, most = 0;  // steps
  std::int32_t limit = 0;            // of a worker's cost, where work is moved

 public:
  __device__ WorkSharing(const LatentParams& params, const LatentSharing& sharing, Arrays& arrays)
      : p(params), to(sharing), s(arrays) {}
  using Shared = Arrays;

  __device__ void run() {
    const bool equal = read();
    std::int32_t each = most;
    float items = static_cast<float>(INT32_MAX);
    bool decided = false;
    if (some > 0 && equal) {
      items = kPays * share_equal(each);
      decided = items <= least_of_moved();
    } else if (some > 0 && 2 * some <= to.workers) {
      items = share_pieces(each);
    }
    if (!decided) {
      sort();
      deal();
      decided = items <= move();
    }
    if (decided) {
      store_items(each);
    } else {
      store_moved();
    }
  }

 private:
  /// Returns whether all work tiles with keys have the same number of steps.
  __device__ bool read() {
    if (me < p.work_tiles) {
      keys = keys_of(find_work_tile(p, me));
      if (keys > to.keys) keys = to.keys;
    }
    steps = divide_up(keys, to.step);
    s.steps[me] = steps;
    s.keys[me] = keys;
    const ShareTotals all = share_totals(steps);
    total = all.steps;
    most = all.most;
    some = all.some;
    return all.least == all.most;
  }
  /// Orders work tiles by size.
  __device__ void sort() {
    // Sizes are made distinct: with the same number of steps, the earlier tile is larger.
    const std::uint32_t size = static_cast<std::uint32_t>(steps) * kShareTiles +
                               static_cast<std::uint32_t>(kShareTiles - 1 - me);
    s.sizes[me] = me < p.work_tiles ? size : 0;
    sync_block();
    rank = share_larger(s.sizes, p.work_tiles, size);
    if (me < p.work_tiles) s.order[rank] = me;
    sync_block();
  }

  __device__ float combine_cost(float partials, float depth) const {
    return to.costs.combine + to.costs.partial * partials + to.costs.depth * depth;
  }

  __device__ float share_equal(std::int32_t& each) {
    const LatentWorkCosts& c = to.costs;
    const auto waves = [&](std::int32_t of) {
      return divide_up(some * divide_up(most, of), to.workers);
    };
    // Split into me + 1 items.
    std::uint32_t cost = ~0u;
    if (me < most && me < to.workers) {
      const std::int32_t of = divide_up(most, me + 1);
      if (me == 0 || some * divide_up(most, of) <= to.partials) {
        const float split =
            me == 0 ? 0 : c.equal_combine + c.equal_depth * static_cast<float>(me + 1);
        cost = float_to_bits(static_cast<float>(waves(of)) *
                                 (static_cast<float>(of * kStep) + c.equal_item) +
                             split);
      }
    }
    const std::uint32_t best = ~share_max(0, ~cost);
    const std::uint32_t parts =
        ~share_max(1, cost == best ? ~static_cast<std::uint32_t>(me + 1) : 0);
    each = divide_up(most, static_cast<std::int32_t>(parts));
    const bool split = each < most;
    const std::int32_t of_worker = waves(each) * (each * kStep + c.item + (split ? c.split : 0));
    const std::int32_t pieces = divide_up(most, each);
    return static_cast<float>(of_worker) +
           (split ? combine_cost(static_cast<float>(some * pieces), static_cast<float>(pieces))
                  : 0);
  }

  /// Least cost of move(), where all work tiles have the same number of steps.
  __device__ float least_of_moved() const {
    const std::int32_t of_tile = to.costs.item + most * kStep, left = some % to.workers;
    const auto whole = static_cast<float>(divide_up(some, to.workers) * of_tile);
    if (left == 0) return whole;
    // Workers with one more tile than others hand some of it on.
    const float split =
        static_cast<float>(some) * static_cast<float>(of_tile) / static_cast<float>(to.workers) +
        static_cast<float>(item_cost()) + combine_cost(static_cast<float>(2 * left), 2);
    return split / kPays < whole ? split / kPays : whole;
  }

  /// The least x in (low, high] that fits, searched with `grain`: high must fit, and so must
  /// everything above one that fits. fits(x) is evaluated by a warp, with the same x in all lanes.
  /// Usually x is near low, so the first tries are closer together there.
  template <class Fits>
  __device__ std::int32_t least_that_fits(std::int32_t low, std::int32_t high, std::int32_t grain,
                                          const Fits& fits) {
    const float share = 1 / static_cast<float>(warps + 1);
    LATHE_ROLLED
    for (int turn = 0; high - low > grain; ++turn) {
      const float between = static_cast<float>(high - low - 1);
      const auto tried = [&](int w) {
        const float at = static_cast<float>(w + 1) * share;
        return low + 1 + static_cast<std::int32_t>(between * (turn == 0 ? at * at : at));
      };
      const bool fit = fits(tried(warp));
      if (lane == 0) s.fits[turn & 1][warp] = fit;
      sync_block();
      const int too_low =
          warps - static_cast<int>(warp_sum(lane < warps ? s.fits[turn & 1][lane] : 0));
      const std::int32_t above = too_low < warps ? tried(too_low) : high;
      if (too_low > 0) low = tried(too_low - 1);
      high = above;
    }
    return high;
  }
  /// The warp with the least cost. cost: the same in all lanes of a warp. least_cost: that cost.
  __device__ int cheapest(float cost, float& least_cost) {
    if (lane == 0) s.costs[warp] = cost;
    sync_block();
    const std::uint32_t of = lane < warps ? float_to_bits(s.costs[lane]) : ~0u;
    const std::uint32_t least = ~warp_max(~of);
    const auto after =
        static_cast<int>(warp_max(of == least ? static_cast<unsigned>(32 - lane) : 0));
    least_cost = bits_to_float(least);
    return 32 - after;
  }

  /// Items of all work tiles when split into `each` steps; evaluated by a warp.
  __device__ std::int32_t items_of(std::int32_t each) const {
    std::uint32_t items = 0;
    LATHE_ROLLED
    for (int t = lane; t < p.work_tiles; t += 32) {
      items += static_cast<std::uint32_t>(divide_up(s.steps[t], each));
    }
    return static_cast<std::int32_t>(warp_sum(items));
  }
  __device__ float share_pieces(std::int32_t& each) {
    const std::int32_t workers = to.workers;
    const std::int32_t fewest = least_that_fits(
        (total - 1) / workers, most, 1, [&](std::int32_t of) { return items_of(of) <= workers; });
    // Also tries longer items: they need fewer partials.
    const auto tried = [&](int w) {
      const std::int32_t of = fewest * (w + 2) / 2;
      return of < most ? of : most;
    };
    const std::int32_t of = tried(warp);
    float cost = static_cast<float>(to.costs.item) + static_cast<float>(of * kStep);
    if (of < most) {
      cost +=
          static_cast<float>(to.costs.split) +
          combine_cost(static_cast<float>(items_of(of)), static_cast<float>(divide_up(most, of)));
    }
    each = tried(cheapest(cost, cost));
    return cost;
  }

  /// Deals whole work tiles, then orders workers by load.
  __device__ void deal() {
    const bool worker = me < to.workers;
    std::int32_t load = 0, tiles = 0, largest = 0;
    const auto take = [&](std::int32_t at) {
      const std::int32_t tile = s.order[at];
      if (tiles == 0) largest = tile;
      load += to.costs.item + s.steps[tile] * kStep;
      s.worker_of[tile] = me;
      ++tiles;
    };
    // Number of workers with less load.
    const auto have_less = [&](int turn) {
      std::int32_t* loads = s.loads[turn & 1];
      if (me < kPlaces) loads[me] = worker ? load : INT32_MAX;
      sync_block();
      return share_lighter(loads, to.workers, load, me);
    };
    if (worker && me < some) take(me);
    int turn = 0;
    LATHE_ROLLED
    for (std::int32_t dealt = to.workers; dealt < some; dealt += to.workers, ++turn) {
      const std::int32_t at = dealt + have_less(turn);
      if (worker && at < some) take(at);
    }
    // After one round the order is that of the work tiles.
    const std::int32_t place = some > to.workers ? have_less(turn)
                               : me < some       ? to.workers - 1 - me
                                                 : me - some;
    if (worker) {
      s.place[me] = place;
      s.load[place] = load;
      s.largest[place] = largest;
      s.keep[place] = tiles > 0 ? s.steps[largest] : 0;
      s.tiles[place] = tiles;
    }
    sync_block();
  }

  /// Steps that a worker above a limit hands on, in whole steps; each part costs one more item.
  __device__ std::int32_t steps_above(std::int32_t load, std::int32_t at) const {
    return load > at ? divide_up(load + to.costs.split - at, kStep) : 0;
  }
  __device__ std::int32_t item_cost() const { return to.costs.item + to.costs.split; }
  __device__ std::int32_t room_below(std::int32_t load, std::int32_t at) const {
    const std::int32_t room = at - load - item_cost();
    return room < kLeastRoom ? 0 : room;
  }
  struct Moved {
    std::int32_t above = 0, below = 0;  // number of workers
    std::int32_t need = 0, room = 0;    // costs
    bool possible = true;
  };
  /// Evaluated by a warp.
  __device__ Moved moved(std::int32_t at) const {
    std::uint32_t above = 0, below = 0, need = 0, room = 0;
    bool possible = true;
    LATHE_UNROLL_BY(4)
    for (int w = lane; w < to.workers; w += 32) {
      const std::int32_t load = s.load[w], keep = s.keep[w], excess = steps_above(load, at);
      if (excess > 0) {
        possible = possible && excess < keep;
        ++above;
        need += static_cast<std::uint32_t>(item_cost() + excess * kStep);
      } else if (const std::int32_t left = room_below(load, at); left > 0) {
        ++below;
        room += static_cast<std::uint32_t>(left);
      }
    }
    const auto sum = [](std::uint32_t v) { return static_cast<std::int32_t>(warp_sum(v)); };
    return {sum(above), sum(below), sum(need), sum(room), !warp_any(!possible)};
  }
  /// Chooses a limit and returns its cost.
  __device__ float move() {
    const std::int32_t heaviest = s.load[to.workers - 1];
    const std::int32_t mean =
        (total * kStep + some * to.costs.item) / to.workers;  // no limit can be lower
    const std::int32_t least_limit =
        mean >= heaviest ? heaviest
                         : least_that_fits(mean - 1, heaviest, kStep / 4, [&](std::int32_t at) {
                             const Moved m = moved(at);
                             return m.possible && m.need <= m.room;
                           });
    const auto tried = [&](int w) {
      return least_limit +
             static_cast<std::int32_t>(static_cast<float>(heaviest - least_limit) *
                                       static_cast<float>(w) / static_cast<float>(warps - 1));
    };
    const std::int32_t at = tried(warp);
    const Moved m = moved(at);
    float cost = static_cast<float>(at);
    if (m.above > 0) {
      const float used =
          static_cast<float>(m.below) * static_cast<float>(m.need) / static_cast<float>(m.room);
      const auto sources = static_cast<float>(m.above);
      // A room where one piece ends and another begins has one more item.
      cost +=
          static_cast<float>(item_cost()) + combine_cost(2 * sources + used, used / sources + 2);
      if (!m.possible || m.need > m.room) cost = 3e38f;
      cost *= 1 / kPays;
    }
    limit = tried(cheapest(cost, cost));
    return cost;
  }

  /// Ends the list: the combine's entry for this thread's work tile, if it has several items or no
  /// keys.
  __device__ void store_split_tiles(int turn, std::int32_t tile, std::int32_t first,
                                    std::int32_t items) {
    const auto store = [&](std::int32_t at, std::int32_t of, int parts) {
      const LatentWorkTile u = find_work_tile(p, of);
      LATHE_ROLLED
      for (int i = 0; i < parts; ++i) {
        to.split_tiles[at + i] = {u.row,
                                  u.m_rows,
                                  first,
                                  static_cast<std::int16_t>(items),
                                  static_cast<std::int8_t>(i),
                                  static_cast<std::int8_t>(parts)};
      }
    };
    const int parts = items > 1 ? combine_parts(items) : 0;
    const bool keyless = me < p.work_tiles && keys == 0;
    const SharePrefix of = share_prefix(turn, parts, keyless);
    if (parts > 0) store(of.before, tile, parts);
    items = 0;
    if (keyless) store(of.all + of.before2, me, 1);
    for (std::int32_t at = of.all + of.all2 + me; at < to.split_room;
         at += static_cast<std::int32_t>(blockDim.x)) {
      to.split_tiles[at].parts = 0;
    }
  }
  /// Splits each work tile into items of at most `each` steps, which are dealt in equal numbers.
  __device__ void store_items(std::int32_t each) {
    const std::int32_t own = steps > 0 ? divide_up(steps, each) : 0;
    const SharePrefix prefix = share_prefix(0, own);
    const std::int32_t before = prefix.before, items = prefix.all;
    std::int32_t* first = s.worker_of;
    first[me] = before;
    sync_block();
    LATHE_ROLLED
    for (std::int32_t i = me; i < items; i += static_cast<std::int32_t>(blockDim.x)) {
      const int tile = share_last_not_above(first, p.work_tiles, i);
      const std::int32_t of = divide_up(s.steps[tile], each), part = i - first[tile];
      const std::int32_t count = divide_up(s.steps[tile], of) * to.step;
      const std::int32_t left = s.keys[tile] - part * count;
      to.items[i] = {tile, part * count, left < count ? left : count, of > 1 ? i : -1};
    }
    const std::int32_t workers = items < to.workers ? items : to.workers;
    for (int w = me; w <= to.workers; w += static_cast<int>(blockDim.x)) {
      to.worker_items[w] = w < workers ? std::int64_t{items} * w / workers : std::int64_t{items};
    }
    store_split_tiles(1, me, before, own);
  }
  /// The step of a part at cost `at`, counted from the part's beginning: the fixed cost of its
  /// work item comes first, then its steps.
  __device__ std::int32_t step_of(std::int32_t at, std::int32_t excess) const {
    const std::int32_t past = at - item_cost();
    const std::int32_t step = past <= 0 ? 0 : (past + kStep / 2) / kStep;
    return step < excess ? step : excess;
  }
  __device__ void store_moved() {
    // Alternates workers: those with most load, then those with least.
    const bool worker = me < to.workers;
    const int last = to.workers - 1;
    const std::int32_t excess = worker ? steps_above(s.load[last - me], limit) : 0;
    const std::int32_t room =
        worker && steps_above(s.load[me], limit) == 0 ? room_below(s.load[me], limit) : 0;
    const SharePrefix line = share_prefix(0, excess > 0 ? item_cost() + excess * kStep : 0, room);
    const std::int32_t end = line.all, from = line.before2;
    const std::int32_t till = from + room < end ? from + room : end;
    if (excess > 0) {
      s.begin[me] = line.before;
      s.excess[me] = excess;
    }
    const std::int32_t sources = share_prefix(1, excess > 0).all;  // also synchronizes
    // Calls visit(source, first step, end) for each piece that this worker receives.
    const auto for_pieces = [&](const auto& visit) {
      if (from >= till) return;
      LATHE_ROLLED
      for (int i = share_last_not_above(s.begin, sources, from); i < sources && s.begin[i] < till;
           ++i) {
        const std::int32_t of = s.excess[i], ends = s.begin[i] + item_cost() + of * kStep;
        const std::int32_t a = from > s.begin[i] ? step_of(from - s.begin[i], of) : 0;
        const std::int32_t b = till < ends ? step_of(till - s.begin[i], of) : of;
        if (a < b) visit(i, a, b);
      }
    };
    std::int32_t pieces = 0;
    for_pieces([&](int, std::int32_t, std::int32_t) { ++pieces; });
    const SharePrefix of = share_prefix(0, pieces, worker ? s.tiles[me] : 0);
    const std::int32_t pieces_before = of.before, base = of.before + of.before2;
    if (worker) s.base[me] = base;
    if (me <= to.workers) to.worker_items[me] = base;
    // The partials of a source have consecutive numbers, its own first.
    std::int32_t piece = pieces_before, at = base + (worker ? s.tiles[me] : 0);
    for_pieces([&](int i, std::int32_t a, std::int32_t b) {
      const int tile = s.largest[last - i];
      const std::int32_t kept = s.steps[tile] - s.excess[i];
      const std::int32_t first = (kept + a) * to.step, left = s.keys[tile] - first;
      const std::int32_t count = (b - a) * to.step;
      to.items[at++] = {tile, first, left < count ? left : count, piece + i + 1};
      if (a == 0) s.first[i] = piece;
      ++piece;
      if (b == s.excess[i]) s.last[i] = piece;
    });
    sync_block();
    if (me < p.work_tiles && keys > 0) {
      const int place = s.place[s.worker_of[me]], source = last - place;
      std::int32_t count = keys, number = -1;
      if (source < sources && s.largest[place] == me) {
        count = (steps - s.excess[source]) * to.step;
        number = s.first[source] + source;
      }
      to.items[s.base[place] + rank / to.workers] = {me, 0, count, number};
    }
    std::int32_t tile = 0, first = 0, all = 0;
    if (excess > 0) {
      tile = s.largest[last - me];
      first = s.first[me] + me;
      all = s.last[me] - s.first[me] + 1;
    }
    store_split_tiles(1, tile, first, all);
  }
};

static __global__ void __launch_bounds__(kShareTiles, 1)
    latent_share_kernel(const __grid_constant__ LatentParams p,
                        const __grid_constant__ LatentSharing to) {
  __shared__ WorkSharing::Shared arrays;
  WorkSharing(p, to, arrays).run();
}

}  // namespace lathe::cuda
