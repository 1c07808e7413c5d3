// Chooses how a latent call is scheduled: M block size, splits of keys, staging. A fitted cost
// model of tiles, work items and blocks ranks the choices.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/integers.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kTile = kLatentTile, kPair = 2 * kTile;

// In pairs of tiles (2 to 5 us per block): the launch of the combine, each partial of a work tile,
// and one more launch of the attention.
constexpr double kSplit = 1.3, kPart = 0.02, kTail = 4;
// Where the device shares: an item of a worker that has others; what it costs more if it writes a
// partial; a combine; each partial that it reads.
constexpr double kItem = 1.5, kSplitItem = 0.5, kCombine = 0.9, kCombined = 0.006;

/// Costs of an M block of m_rows rows, relative to a pair of tiles with 64 rows.
struct BlockCost {
  std::int32_t m_rows;
  double pair;   // a pair of tiles of keys
  double item;   // prologue and epilogue
  double block;  // each resident block
};
// Fitted to calls of 1 to 16 requests (bench/notes/schedule/03-few-requests.md).
constexpr BlockCost kF16Costs[] = {
    {64, 1, 3, 0.0073}, {32, 0.72, 2.55, 0.0073}, {16, 0.6, 2.25, 0.0073}};
constexpr BlockCost kFp8Costs[] = {
    {64, 1, 3, 0.014}, {32, 0.73, 2.45, 0.014}, {16, 0.54, 1.6, 0.014}};
// Smaller blocks must promise 5 % less, because the fit is 4 % off on average.
constexpr double kSmallBlocksPay = 0.95;

/// Cost of a work tile's keys, in pairs of tiles.
struct WorkTileCost {
  BlockCost of;
  std::int64_t step;    // keys; splits are at multiples of it
  std::int64_t steps;   // steps of its keys
  std::int64_t tiles;   // M blocks
  std::int64_t blocks;  // most workers
  std::int64_t partial_bytes;

  double whole(std::int64_t n) const {
    return static_cast<double>(n * step) / kPair * of.pair + of.item;
  }

  struct Best {
    std::int64_t each;  // steps of an item
    double cost;
  };
  Best best(std::int64_t work_tiles) const {
    Best b{steps, std::numeric_limits<double>::infinity()};
    for (std::int64_t n = 1; n <= std::min<std::int64_t>(steps, blocks); ++n) {
      const std::int64_t each = ceil_div(steps, n), items = work_tiles * ceil_div(steps, each);
      if (n > 1 && items * partial_bytes > kLatentPartialBytes) break;
      const double cost = static_cast<double>(ceil_div(items, blocks)) * whole(each) +
                          (n > 1 ? kSplit + kPart * static_cast<double>(n) : 0);
      if (cost < b.cost) b = {each, cost};
    }
    return b;
  }
  /// Cost of a call, over all M blocks.
  double all(std::int64_t work_tiles) const {
    const Best b = best(work_tiles);
    const std::int64_t items = work_tiles * ceil_div(steps, b.each);
    return b.cost + of.block * static_cast<double>(std::min(items, blocks) * tiles);
  }
};

LatentShares share(std::int64_t work_tiles, std::int64_t keys, std::int64_t each,
                   const WorkTileCost& cost) {
  LatentShares s;
  s.work_tiles = work_tiles;
  s.work_tile_items = ceil_div(cost.steps, each);
  s.work.workers = static_cast<std::int32_t>(
      std::min(cost.blocks, std::max<std::int64_t>(work_tiles * s.work_tile_items, 1)));
  s.work.block = static_cast<std::int32_t>(cost.step);
  s.work.fixed_split = static_cast<std::int32_t>(each * cost.step);
  s.items = max_work_items(work_tiles, keys, s.work);
  return s;
}

LatentWorkCosts work_costs(const WorkTileCost& cost) {
  // Costs are in units of a step / kLatentStepCost.
  const double unit = kLatentStepCost * static_cast<double>(kPair) /
                      (static_cast<double>(cost.step) * cost.of.pair);
  const auto whole = [&](double pairs) {
    return static_cast<std::int32_t>(std::lround(pairs * unit));
  };
  const auto part = [&](double pairs) { return static_cast<float>(pairs * unit); };
  const double m_rows = static_cast<double>(cost.tiles * cost.of.m_rows);
  return {.item = whole(kItem * cost.of.item / 3),
          .split = whole(kSplitItem * cost.of.m_rows / 64),
          .combine = part(kCombine),
          .partial = part(kCombined * m_rows / 64),
          .depth = part(kPart),
          .equal_item = part(cost.of.item),
          .equal_combine = part(kSplit),
          .equal_depth = part(kPart)};
}

/// Lets the device distribute the work tiles among workers.
void share_on_device(LatentCut& c, const WorkTileCost& cost) {
  LatentShares& all = c.all;
  c.shared = true;
  c.shared_parts = std::max(2 * cost.blocks, all.cut() ? all.items : 0);
  all.work.workers = static_cast<std::int32_t>(std::min(cost.blocks, all.work_tiles * cost.steps));
  all.items = all.work_tiles + c.shared_parts;
  c.costs = work_costs(cost);
}

/// Lets the device distribute the work tiles, and splits each by its own keys alone, so that its
/// bits do not depend on other requests. Prefills of many rows are not split: they fill the SMs
/// anyway, and partials would need more memory than their keys.
void share_fixed(LatentCut& c, std::int64_t keys, const WorkTileCost& cost) {
  c.shared = true;
  c.fixed = static_cast<std::int32_t>(cost.tiles <= kLatentFixedBlocks
                                          ? ceil_div(keys, cost.step)
                                          : std::max(cost.steps, ceil_div(keys, cost.step)));
  const std::int64_t pieces =
      std::min<std::int64_t>(ceil_div(cost.steps, c.fixed), kLatentFixedPieces);
  const std::int64_t items = c.all.work_tiles * pieces;
  c.shared_parts = pieces > 1 ? items : 0;
  c.all.work = {.workers = static_cast<std::int32_t>(std::clamp<std::int64_t>(
                    items, 1, std::min<std::int64_t>(cost.blocks, kShareWorkers))),
                .block = static_cast<std::int32_t>(cost.step)};
  c.all.items = items;
  c.all.work_tile_items = pieces;
  c.costs = work_costs(cost);
}

}  // namespace

LatentCut cut_latent(const LatentShape& s) {
  const std::int64_t work_tiles = s.dense ? s.requests : s.rows;
  const std::int64_t m_rows =
      s.dense ? s.heads * std::max<std::int64_t>(s.request_rows, 1) : s.heads;
  const auto tiles_of = [&](std::int32_t block_m) {
    return std::max<std::int64_t>(ceil_div(m_rows, block_m), 1);
  };
  const auto cost_of = [&](const BlockCost& of, std::int64_t step) {
    const std::int64_t tiles = tiles_of(of.m_rows);
    return WorkTileCost{of,
                        step,
                        std::max<std::int64_t>(ceil_div(s.keys, step), 1),
                        tiles,
                        std::max<std::int64_t>(s.sms / tiles, 1),
                        tiles * of.m_rows * (kLatentValue + 1) * 4};
  };
  const auto& costs = s.fp8 ? kFp8Costs : kF16Costs;
  BlockCost of = costs[0];
  if (m_rows <= 32) of.m_rows = m_rows > 16 ? 32 : m_rows > 8 ? 16 : 8;
  WorkTileCost cost = cost_of(of, kPair);
  if (m_rows > 32 && s.fp8_pages && s.fixed_keys == 0) {
    const WorkTileCost single = cost_of(of, kTile);
    if (!s.fp8 && single.all(work_tiles) < cost.all(work_tiles)) cost = single;
    double least = cost.all(work_tiles) * kSmallBlocksPay;
    for (const BlockCost& few : costs) {
      if (few.m_rows < s.min_block_m || few.m_rows == 64 || s.heads % few.m_rows != 0) continue;
      const WorkTileCost by_few = cost_of(few, kPair);
      const double all = by_few.all(work_tiles);
      if (all < least) {
        least = all;
        cost = by_few;
      }
    }
  }
  LatentCut c;
  c.block_m = cost.of.m_rows;
  c.m_blocks = static_cast<std::int32_t>(cost.tiles);
  c.keys = s.keys;
  if (s.fixed_keys > 0) {
    c.all.work_tiles = work_tiles;
    share_fixed(c, s.fixed_keys, cost);
    return c;
  }
  const WorkTileCost::Best alike = cost.best(work_tiles);
  c.all = share(work_tiles, s.keys, alike.each, cost);
  const bool shares = cost.blocks > 1 && cost.blocks <= kShareWorkers &&
                      work_tiles <= kShareTiles && work_tiles * cost.steps < kShareSteps;
  if (s.dense && shares) {
    share_on_device(c, cost);
    return c;
  }
  // Waves of whole rows, and a last wave of split ones.
  const std::int64_t left = work_tiles % cost.blocks, rounds = work_tiles / cost.blocks;
  if (!s.dense && rounds > 0 && left > 0) {
    const WorkTileCost::Best last = cost.best(left);
    const double whole = static_cast<double>(rounds) * cost.whole(cost.steps);
    if (last.each < cost.steps && whole + last.cost + kTail < alike.cost) {
      c.all = share(work_tiles - left, s.keys, cost.steps, cost);
      c.tail = share(left, s.keys, last.each, cost);
    }
  }
  LatentCut staged = c;
  stage_latent(s, staged);
  return stage_pays(s, staged) ? staged : c;
}

std::int64_t LatentCut::split_entries() const {
  // combine_parts() of n items is at most n / 4, or 1.
  return all.work_tiles + shared_parts / 4 + 1;
}

}  // namespace lathe::cuda
