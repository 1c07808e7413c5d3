#include <algorithm>
#include <limits>

#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/latent_staging.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kPair = 2 * kLatentTile;

std::int64_t up(std::int64_t n, std::int64_t d) { return (n + d - 1) / d; }

// Pairs of tiles (2 to 5 us by a block) that filling and emptying the pipeline cost, the combination's launch, each of
// a unit's parts, and one more launch of the attention.
constexpr double kItem = 3, kSplit = 1.3, kPart = 0.02, kTail = 4;

/// What a unit's keys cost, in pairs of tiles.
struct UnitCost {
  std::int64_t pairs;   // of tiles of a unit's keys
  std::int64_t blocks;  // workers, at most
  std::int64_t part_bytes;

  struct Best {
    std::int64_t each;  // pairs of an item
    double cost;
  };
  Best best(std::int64_t units) const {
    Best b{pairs, std::numeric_limits<double>::infinity()};
    for (std::int64_t n = 1; n <= std::min<std::int64_t>(pairs, blocks); ++n) {
      const std::int64_t each = up(pairs, n), items = units * up(pairs, each);
      if (n > 1 && items * part_bytes > kLatentPartBytes) break;
      const double cost =
          static_cast<double>(up(items, blocks)) * (static_cast<double>(each) + kItem) +
          (n > 1 ? kSplit + kPart * static_cast<double>(n) : 0);
      if (cost < b.cost) b = {each, cost};
    }
    return b;
  }
};

LatentShares share(std::int64_t units, std::int64_t keys, std::int64_t each, const UnitCost& cost) {
  LatentShares s;
  s.units = units;
  s.unit_items = up(cost.pairs, each);
  s.work.workers = static_cast<std::int32_t>(
      std::min(cost.blocks, std::max<std::int64_t>(units * s.unit_items, 1)));
  s.work.block = static_cast<std::int32_t>(kPair);
  s.work.fixed_split = static_cast<std::int32_t>(each * kPair);
  s.items = max_work_items(units, keys, s.work);
  return s;
}

}  // namespace

LatentCut cut_latent(const LatentShape& s) {
  LatentCut c;
  const std::int64_t lines =
      s.dense ? s.heads * std::max<std::int64_t>(s.request_rows, 1) : s.heads;
  c.tile_lines = lines > 32 ? 64 : lines > 16 ? 32 : lines > 8 ? 16 : 8;
  c.tiles = static_cast<std::int32_t>(std::max<std::int64_t>(up(lines, c.tile_lines), 1));
  c.keys = s.keys;
  const std::int64_t units = s.dense ? s.requests : s.rows;
  const UnitCost cost{std::max<std::int64_t>(up(s.keys, kPair), 1),
                      std::max<std::int64_t>(s.processors / c.tiles, 1),
                      std::int64_t{c.tiles} * c.tile_lines * (kLatentValue + 1) * 4};
  const UnitCost::Best alike = cost.best(units);
  c.all = share(units, s.keys, alike.each, cost);
  // Rounds of whole rows, and a last one of cut ones.
  const std::int64_t left = units % cost.blocks, rounds = units / cost.blocks;
  if (!s.dense && rounds > 0 && left > 0) {
    const UnitCost::Best last = cost.best(left);
    const double whole = static_cast<double>(rounds) * (static_cast<double>(cost.pairs) + kItem);
    if (last.each < cost.pairs && whole + last.cost + kTail < alike.cost) {
      c.all = share(units - left, s.keys, cost.pairs, cost);
      c.tail = share(left, s.keys, last.each, cost);
    }
  }
  LatentCut staged = c;
  stage_latent(s, staged);
  return stage_pays(s, staged) ? staged : c;
}

}  // namespace lathe::cuda
