// Bounds a latent call's scratch by the maxima of its shape.
#include <algorithm>

#include "base/integers.h"
#include "kernels/cuda/sm90/latent/latent.h"
#include "kernels/cuda/sm90/latent/latent_params.h"
#include "kernels/cuda/sm90/latent/stage/staging.h"

namespace lathe::cuda {
namespace {

constexpr std::int64_t kPartialRow = (kLatentValue + 1) * 4;  // bytes of an M row of a partial

struct Parts {
  std::int64_t items = 0;  // items with partials
  std::int64_t bytes = 0;
};

/// Bound for splits that follow a work tile's own number of keys.
Parts fixed_parts(std::int64_t work_tiles, std::int64_t m_rows, std::int64_t fixed_keys,
                  std::int64_t keys) {
  constexpr std::int64_t kMost = kLatentFixedBlocks * kLatentBlockRows;  // of a split work tile
  const std::int64_t pieces = std::min<std::int64_t>(
      ceil_div(std::max(keys, fixed_keys), fixed_keys) + 1, kLatentFixedPieces);
  const std::int64_t items = work_tiles * pieces;
  return {items, items * std::min(m_rows, kMost) * kPartialRow};
}

/// Bound for splits that balance: n items of a work tile are n resident blocks of it, so a work
/// tile has at most as many items as the SMs hold blocks.
Parts balanced_parts(const LatentShape& s, std::int64_t work_tiles, std::int64_t m_rows) {
  const std::int64_t steps = std::max<std::int64_t>(ceil_div(s.keys, kLatentTile), 1);
  const std::int64_t sms = s.sms, held = kLatentBlockRows * sms;  // resident M rows
  Parts p;
  if (steps > 1) {
    const std::int64_t each = std::min(steps * m_rows, held);  // M rows
    p.items = std::min(work_tiles * std::min(steps, sms), kLatentPartialBytes / (8 * kPartialRow));
    p.bytes = std::min(work_tiles * each * kPartialRow, kLatentPartialBytes);
  }
  if (s.dense) {  // the device may write two partials per worker
    p.items = std::max(p.items, 2 * sms);
    p.bytes = std::max(p.bytes, 2 * held * kPartialRow);
  }
  return p;
}

/// Whether calls may stage pages, assuming the fewest tokens that lists can hold.
bool may_stage(const LatentShape& s) {
  if (s.dense || s.fp8 || s.fixed_keys > 0 || s.main.pages == 0 || s.heads <= 32) return false;
  LatentShape few = s;
  few.tokens = 1;
  LatentCut cut;
  cut.main = {s.main, s.rows, 1};
  return stage_pays(few, cut);
}

}  // namespace

std::int64_t latent_workspace_bytes(const LatentShape& most) {
  const std::int64_t work_tiles = most.dense ? most.requests : most.rows;
  const std::int64_t per_tile =
      most.dense ? most.heads * std::max<std::int64_t>(most.request_rows, 1) : most.heads;
  const std::int64_t m_rows = ceil_div(per_tile, kLatentBlockRows) * kLatentBlockRows;
  const Parts parts = most.fixed_keys > 0
                          ? fixed_parts(work_tiles, m_rows, most.fixed_keys, most.keys)
                          : balanced_parts(most, work_tiles, m_rows);
  // Both lists of a schedule together. Each array is aligned to 256 bytes.
  constexpr std::int64_t kArrays = 12 * 256;
  const std::int64_t workers = 2 * (std::max<std::int64_t>(most.sms, kShareWorkers) + 1);
  const std::int64_t schedule =
      (work_tiles + parts.items) * static_cast<std::int64_t>(sizeof(WorkItem)) +
      (work_tiles + 2 + workers + work_workspace(work_tiles)) * 8 + work_tiles * 4 +
      (work_tiles + parts.items / 4 + 1) * static_cast<std::int64_t>(sizeof(LatentSplitTile));
  return schedule + kArrays + (may_stage(most) ? kLatentPartialBytes : parts.bytes);
}

}  // namespace lathe::cuda
