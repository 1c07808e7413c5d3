#include <algorithm>
#include <limits>

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kTile = kLatentTile, kPair = 2 * kTile;

std::int64_t up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

// Pairs of tiles (2 to 5 us by a block) that the combination's launch costs, each of a unit's parts, and one more
// launch of the attention.
constexpr double kSplit = 1.3, kPart = 0.02, kTail = 4;

/// What blocks of so many lines cost, in what a pair of tiles takes one of 64.
struct LineCost {
  std::int32_t lines;
  double pair;   // of tiles of keys
  double item;   // filling and emptying the pipeline
  double block;  // each one that runs
};
// Fitted to calls of 1 to 16 requests (bench/notes/schedule/03-few-requests.md).
constexpr LineCost kF16Costs[] = {
    {64, 1, 3, 0.0073}, {32, 0.72, 2.55, 0.0073}, {16, 0.6, 2.25, 0.0073}};
constexpr LineCost kFp8Costs[] = {
    {64, 1, 3, 0.014}, {32, 0.73, 2.45, 0.014}, {16, 0.54, 1.6, 0.014}};
// Few lines are taken where they promise that part of the time of 64, as the fit is 4 % off in the mean.
constexpr double kFewLinesPay = 0.95;

/// What a unit's keys cost, in pairs of tiles.
struct UnitCost {
  LineCost of;
  std::int64_t step;    // keys; it is cut at multiples of them
  std::int64_t steps;   // of its keys
  std::int64_t tiles;   // of its lines
  std::int64_t blocks;  // workers, at most
  std::int64_t part_bytes;

  double whole(std::int64_t n) const {
    return static_cast<double>(n * step) / kPair * of.pair + of.item;
  }

  struct Best {
    std::int64_t each;  // steps of an item
    double cost;
  };
  Best best(std::int64_t units) const {
    Best b{steps, std::numeric_limits<double>::infinity()};
    for (std::int64_t n = 1; n <= std::min<std::int64_t>(steps, blocks); ++n) {
      const std::int64_t each = up(steps, n), items = units * up(steps, each);
      if (n > 1 && items * part_bytes > kLatentPartBytes) break;
      const double cost = static_cast<double>(up(items, blocks)) * whole(each) +
                          (n > 1 ? kSplit + kPart * static_cast<double>(n) : 0);
      if (cost < b.cost) b = {each, cost};
    }
    return b;
  }
  /// Of a call, tiles of lines included.
  double all(std::int64_t units) const {
    const Best b = best(units);
    const std::int64_t items = units * up(steps, b.each);
    return b.cost + of.block * static_cast<double>(std::min(items, blocks) * tiles);
  }
};

LatentShares share(std::int64_t units, std::int64_t keys, std::int64_t each, const UnitCost& cost) {
  LatentShares s;
  s.units = units;
  s.unit_items = up(cost.steps, each);
  s.work.workers = static_cast<std::int32_t>(
      std::min(cost.blocks, std::max<std::int64_t>(units * s.unit_items, 1)));
  s.work.block = static_cast<std::int32_t>(cost.step);
  s.work.fixed_split = static_cast<std::int32_t>(each * cost.step);
  s.items = max_work_items(units, keys, s.work);
  return s;
}

}  // namespace

LatentCut cut_latent(const LatentShape& s) {
  const std::int64_t units = s.dense ? s.requests : s.rows;
  const std::int64_t lines =
      s.dense ? s.heads * std::max<std::int64_t>(s.request_rows, 1) : s.heads;
  const auto tiles_of = [&](std::int32_t tile_lines) {
    return std::max<std::int64_t>(up(lines, tile_lines), 1);
  };
  const auto cost_of = [&](const LineCost& of, std::int64_t step) {
    const std::int64_t tiles = tiles_of(of.lines);
    return UnitCost{of,
                    step,
                    std::max<std::int64_t>(up(s.keys, step), 1),
                    tiles,
                    std::max<std::int64_t>(s.processors / tiles, 1),
                    tiles * of.lines * (kLatentValue + 1) * 4};
  };
  const auto& costs = s.fp8 ? kFp8Costs : kF16Costs;
  LineCost of = costs[0];
  if (lines <= 32) of.lines = lines > 16 ? 32 : lines > 8 ? 16 : 8;
  UnitCost cost = cost_of(of, kPair);
  if (lines > 32 && s.fp8_pages) {
    const UnitCost single = cost_of(of, kTile);
    if (!s.fp8 && single.all(units) < cost.all(units)) cost = single;
    double least = cost.all(units) * kFewLinesPay;
    for (const LineCost& few : costs) {
      if (few.lines < s.least_lines || few.lines == 64 || s.heads % few.lines != 0) continue;
      const UnitCost by_few = cost_of(few, kPair);
      const double all = by_few.all(units);
      if (all < least) {
        least = all;
        cost = by_few;
      }
    }
  }
  LatentCut c;
  c.tile_lines = cost.of.lines;
  c.tiles = static_cast<std::int32_t>(cost.tiles);
  c.keys = s.keys;
  const UnitCost::Best alike = cost.best(units);
  c.all = share(units, s.keys, alike.each, cost);
  // Rounds of whole rows, and a last one of cut ones.
  const std::int64_t left = units % cost.blocks, rounds = units / cost.blocks;
  if (!s.dense && rounds > 0 && left > 0) {
    const UnitCost::Best last = cost.best(left);
    const double whole = static_cast<double>(rounds) * cost.whole(cost.steps);
    if (last.each < cost.steps && whole + last.cost + kTail < alike.cost) {
      c.all = share(units - left, s.keys, cost.steps, cost);
      c.tail = share(left, s.keys, last.each, cost);
    }
  }
  LatentCut staged = c;
  stage_latent(s, staged);
  return stage_pays(s, staged) ? staged : c;
}

}  // namespace lathe::cuda
