#include "kernels/cpu/grouped_query/gqa_plan.h"

#include <algorithm>

#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/tile/tile_types.h"

namespace lathe {
namespace {

constexpr std::int64_t kTileKeys = kTile;
// Queries (rows x group) that share a tile: enough to repay unpacking the tile, but few enough that
// scores and accumulators stay in the second-level cache.
constexpr std::int32_t kBlockQueries = 128;
// Most bytes of accumulators that a task keeps for its KV heads.
constexpr std::int64_t kStateBytes = 128 << 10;
// Tasks per thread: enough to balance tasks of different lengths.
constexpr std::int64_t kTasksPerThread = 4;
// Folding a shorter part would cost more than it gains.
constexpr std::int64_t kLeastPartKeys = 256;

std::int32_t block_rows(const AttendArgs& args) {
  if (args.main.table_width == 0) return 1;
  const std::int32_t group = args.problem.heads / args.problem.kv_heads;
  return std::max(1, kBlockQueries / group);
}

std::int64_t begin_of(const GqaBlock& b) { return b.first_key / kTileKeys * kTileKeys; }

// Splits the keys of a block into parts that start at multiples of part_keys.
void cut(GqaBlock& b, std::int64_t part_keys) {
  b.part_keys = part_keys;
  b.parts =
      b.end_key <= b.first_key
          ? 1
          : static_cast<std::int32_t>(ceil_div(b.end_key, part_keys) - b.first_key / part_keys);
}

}  // namespace

std::int64_t gqa_blocks_bound(const AttendArgs& args) {
  const std::int64_t most = block_rows(args);
  std::int64_t blocks = 0;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    blocks += ceil_div(std::int64_t{args.q_indptr[r + 1]} - args.q_indptr[r], most);
  }
  return blocks;
}

GqaPlan plan_gqa(const AttendArgs& args, std::int64_t threads, GqaBlock* blocks) {
  const AttentionProblem& p = args.problem;
  const KeySource& source = args.main;
  GqaPlan plan;
  const std::int32_t most = block_rows(args);
  std::int32_t rows_seen = 1;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    const std::int32_t begin = args.q_indptr[r];
    const std::int32_t end = args.q_indptr[r + 1];
    // Start with the last rows: they see the most keys, and the longest tasks should go first.
    for (std::int32_t left = end - begin; left > 0;) {
      GqaBlock& b = blocks[plan.blocks++];
      b = {};
      b.rows = std::min(left, most);
      left -= b.rows;
      b.request = static_cast<std::int32_t>(r);
      b.row = begin + left;
      rows_seen = std::max(rows_seen, b.rows);
      if (source.table_width > 0) {
        b.position = std::int64_t{args.kv_lens[r]} - (end - b.row);
        b.first_key = p.first_key(b.position);
        b.end_key = std::max<std::int64_t>(0, b.position + b.rows);
      } else {
        b.end_key = source.index_lengths.empty()
                        ? source.index_width
                        : source.index_lengths[static_cast<std::size_t>(b.row)];
      }
    }
  }
  plan.block_rows = rows_seen;
  const std::int64_t queries = std::int64_t{rows_seen} * (p.heads / p.kv_heads);
  const std::int64_t state = queries * std::max(p.head_dim, p.v_head_dim) * 4;
  const auto heads_in_state = std::clamp<std::int64_t>(kStateBytes / state, 1, p.kv_heads);
  std::int64_t slices = ceil_div(p.kv_heads, heads_in_state);

  const std::int64_t wanted = threads == 1 ? 1 : kTasksPerThread * threads;
  const std::int64_t whole = plan.blocks * slices;
  if (whole > 0 && whole < wanted) {
    const std::int64_t parts = ceil_div(wanted, whole);
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < plan.blocks; ++i) {
      GqaBlock& b = blocks[i];
      const std::int64_t keys = b.end_key - begin_of(b);
      cut(b,
          args.execution.batch_invariant.value_or(true)
              ? kGqaFoldKeys
              : std::max(kLeastPartKeys, ceil_div(ceil_div(keys, parts), kTileKeys) * kTileKeys));
      total += b.parts;
    }
    const std::int64_t bytes = total * rows_seen * p.heads * (p.v_head_dim + 2) * 4;
    if (bytes > kGqaPartBytes) {
      for (std::int64_t i = 0; i < plan.blocks; ++i) blocks[i].parts = 1;
    }
  }
  for (std::int64_t i = 0; i < plan.blocks; ++i) {
    blocks[i].first_task = plan.tasks;
    blocks[i].first_part = plan.parts;
    plan.tasks += blocks[i].parts;
    if (blocks[i].parts > 1) plan.parts += blocks[i].parts;
  }
  while (plan.tasks * slices < wanted && slices < p.kv_heads) {
    slices = std::min<std::int64_t>(2 * slices, p.kv_heads);
  }
  plan.slice_heads = static_cast<std::int32_t>(ceil_div(p.kv_heads, slices));
  plan.slices = static_cast<std::int32_t>(ceil_div(p.kv_heads, plan.slice_heads));
  return plan;
}

}  // namespace lathe
