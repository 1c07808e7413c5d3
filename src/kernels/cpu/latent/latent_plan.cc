#include "kernels/cpu/latent/latent_plan.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/latent/latent_keys.h"
#include "kernels/cpu/latent/latent_math.h"

namespace lathe {
namespace {

// Most M rows that share a decoded tile. With 64, decoding is a small part of the work, and their q
// and outputs and a tile of keys (all f32) fit the second-level cache.
constexpr std::int64_t kMaxMRows = 64;
constexpr std::int64_t kLatentTasksPerThread = 4;  // enough for a balanced load
constexpr std::int64_t kLeastPart = 256;  // keys; folding shorter parts costs more than it gains

// First keys of the fixed parts before the first multiple of kLatentFoldKeys.
constexpr std::int64_t kShortParts[] = {0, 256, 512};
constexpr std::int64_t kShortCount = std::ssize(kShortParts);
static_assert(kLatentTile == 64 && kLeastPart % kLatentTile == 0 &&
              kLatentFoldKeys % kLatentTile == 0);

// Calls f for every work tile of the call. Its parts are not set yet.
template <class F>
void for_work_tiles(const AttendArgs& args, const LatentRun* run, F f) {
  const std::int64_t heads = args.problem.heads;
  const std::int64_t groups = ceil_div(heads, kMaxMRows);
  const std::int64_t group_heads = ceil_div(heads, groups);
  const bool shared = shares_keys(args);
  const std::int64_t block = shared ? std::max<std::int64_t>(1, kMaxMRows / group_heads) : 1;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    const std::int64_t begin = args.q_indptr[r];
    const std::int64_t end = args.q_indptr[r + 1];
    for (std::int64_t row = begin; row < end; row += block) {
      LatentWorkTile work_tile;
      work_tile.request = static_cast<std::int64_t>(r);
      work_tile.row = row;
      work_tile.rows = static_cast<std::int32_t>(std::min(block, end - row));
      work_tile.position = args.kv_lens[r] - (end - row) - (run == nullptr ? 0 : run->first);
      work_tile.keys = shared ? std::max<std::int64_t>(0, work_tile.position + work_tile.rows)
                              : RowKeys(args, row, work_tile.request, work_tile.position).bound();
      if (run != nullptr) work_tile.keys = std::min(work_tile.keys, run->keys);
      for (std::int64_t h = 0; h < heads; h += group_heads) {
        work_tile.head = static_cast<std::int32_t>(h);
        work_tile.heads = static_cast<std::int32_t>(std::min(group_heads, heads - h));
        f(work_tile);
      }
    }
  }
}

}  // namespace

std::int64_t LatentCuts::begin(std::int64_t part) const {
  if (even > 0) return part * even;
  if (part < kShortCount) return kShortParts[part];
  return (part - kShortCount + 1) * kLatentFoldKeys;
}

std::int64_t LatentCuts::part_of(std::int64_t key) const {
  if (even > 0) return key / even;
  if (key >= kLatentFoldKeys) return kShortCount - 1 + key / kLatentFoldKeys;
  return std::ranges::upper_bound(kShortParts, key) - std::begin(kShortParts) - 1;
}

LatentPlan::LatentPlan(const AttendArgs& args, const LatentRun* the_run)
    : width(latent_padded(args.problem.qk_dim())),
      // An odd number of cache lines, so that a column's keys are spread over all cache sets.
      key_stride(width % (2 * kLatentPad) == 0 ? width + kLatentPad : width),
      out_stride(latent_padded(args.problem.v_dim())),
      workers(thread_count(args.execution)),
      run(the_run) {
  std::int64_t keys = 0;
  std::int64_t longest = 0;
  for_work_tiles(args, run, [&](const LatentWorkTile& work_tile) {
    ++work_tiles;
    keys += work_tile.keys;
    longest = std::max(longest, work_tile.keys);
    m_rows = std::max(m_rows, work_tile.m_rows());
  });

  const std::int64_t wanted = workers * kLatentTasksPerThread;
  const std::int64_t share = ceil_div(keys, wanted);
  // Split the keys only if there are too few work tiles, or one of them is too long.
  const bool uneven = workers > 1 && longest > share;
  if (!args.execution.batch_invariant.value_or(true) && run == nullptr) {
    cuts.even = uneven ? std::max(kLeastPart, ceil_div(share, kLatentTile) * kLatentTile)
                       : std::int64_t{1} << 40;
  }

  std::int64_t all_parts = 0;
  for_work_tiles(args, run, [&](const LatentWorkTile& work_tile) {
    const std::int64_t n = parts_of(work_tile.keys);
    all_parts += n;
    if (n > 1) parts += n;
  });
  // The work tiles of a run are folded into states that already exist.
  parts_apart =
      run == nullptr && uneven && parts > 0 && parts * state_floats() * 4 <= kLatentPartBytes;
  if (!parts_apart) parts = 0;
  tasks = parts_apart ? all_parts : work_tiles;

  tasks_at = whole_lines(work_tiles * static_cast<std::int64_t>(sizeof(LatentWorkTile)));
  list_bytes = tasks_at + whole_lines(tasks * static_cast<std::int64_t>(sizeof(LatentTask)));
  workers_at = parts * state_floats() * 4;
  const std::int64_t small = latent_padded(m_rows);
  const std::int64_t floats = m_rows * width + kLatentTile * key_stride + m_rows * kLatentTile +
                              2 * small + 2 * state_floats();
  // An extra page, or the workers' buffers would map to the same cache sets.
  worker_bytes = whole_lines(floats * 4) + 4096 + 64;
  work_bytes = workers_at + workers * worker_bytes;
}

std::int64_t LatentPlan::parts_of(std::int64_t keys) const {
  const std::int64_t first = run == nullptr ? 0 : run->first;
  return keys <= 0 ? 1 : cuts.part_of(first + keys - 1) - cuts.part_of(first) + 1;
}

std::int64_t LatentPlan::part_begin(std::int64_t part) const {
  const std::int64_t first = run == nullptr ? 0 : run->first;
  return cuts.begin(cuts.part_of(first) + part) - first;
}

std::int64_t LatentPlan::state_floats() const {
  return m_rows * out_stride + 2 * latent_padded(m_rows);
}

void LatentPlan::fill(const AttendArgs& args, std::byte* lists) const {
  auto* work_tile_at = reinterpret_cast<LatentWorkTile*>(lists);
  auto* task_at = reinterpret_cast<LatentTask*>(lists + tasks_at);
  std::int32_t number = 0;
  std::int64_t part_at = 0;
  for_work_tiles(args, run, [&](LatentWorkTile work_tile) {
    work_tile.parts = static_cast<std::int32_t>(parts_of(work_tile.keys));
    if (parts_apart && work_tile.parts > 1) {
      work_tile.first_part = part_at;
      part_at += work_tile.parts;
    }
    *work_tile_at++ = work_tile;
    const std::int32_t apart = parts_apart ? work_tile.parts : 1;
    for (std::int32_t p = 0; p < apart; ++p) {
      const std::int64_t keys =
          apart == 1 ? work_tile.keys : std::min(part_begin(p + 1), work_tile.keys) - part_begin(p);
      *task_at++ = {number, apart == 1 ? -1 : p, keys * work_tile.m_rows()};
    }
    ++number;
  });
  LatentTask* first = reinterpret_cast<LatentTask*>(lists + tasks_at);
  std::sort(first, task_at, [](const LatentTask& a, const LatentTask& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.work_tile != b.work_tile ? a.work_tile < b.work_tile : a.part < b.part;
  });
}

std::span<const LatentWorkTile> LatentPlan::work_tile_list(const std::byte* lists) const {
  return {reinterpret_cast<const LatentWorkTile*>(lists), static_cast<std::size_t>(work_tiles)};
}

std::span<const LatentTask> LatentPlan::task_list(const std::byte* lists) const {
  return {reinterpret_cast<const LatentTask*>(lists + tasks_at), static_cast<std::size_t>(tasks)};
}

}  // namespace lathe
