#include "model/layers/rope_cache.h"

#include <algorithm>
#include <utility>

namespace lathe {
namespace {

// V4's index keys rotate like its other keys.
bool has_index_table(const AttentionProblem& problem) {
  return problem.kind == ProblemKind::sparse_latent;
}

Result<RopeTables> tables_of(const LayerGroupConfig& group, RopePairing index_pairing,
                             std::int64_t positions) {
  auto main = RopeTable::make(group.rope, positions);
  if (!main) return main.error();
  RopeTables tables{std::move(*main), std::nullopt, std::nullopt};
  const auto& growth = group.query_growth;
  if (growth && static_cast<double>(positions) + growth->shift > growth->context) {
    RopeConfig config = group.rope;
    if (group.problem.kind != ProblemKind::grouped_query) {  // grows a whole head, and rotates none
      config = {.dim = static_cast<std::int32_t>(group.problem.qk_nope_head + group.problem.rope),
                .pairs = 0};
    }
    config.growth = growth;
    auto query = RopeTable::make(config, positions);
    if (!query) return query.error();
    tables.query = std::move(*query);
  }
  if (has_index_table(group.problem)) {
    RopeConfig config = group.rope;
    config.pairing = index_pairing;
    auto index = RopeTable::make(config, positions);
    if (!index) return index.error();
    tables.index = std::move(*index);
  }
  return tables;
}

}  // namespace

Result<std::shared_ptr<const ModelRope>> RopeCache::tables(const ModelConfig& config,
                                                           std::int64_t positions) {
  const std::lock_guard lock(guard_);
  const auto serves = [&](const ModelRope& made) {
    return made.positions >= positions &&
           std::ranges::all_of(config.groups, [&](const LayerGroupConfig& g) {
             return rope_is_long(g.rope, positions) == rope_is_long(g.rope, made.positions);
           });
  };
  if (made_ != nullptr && serves(*made_)) return made_;
  ModelRope rope;
  rope.positions = positions;
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const LayerGroupConfig& group = config.groups[g];
    std::size_t equal = 0;
    while (equal < g &&
           (config.groups[equal].rope != group.rope ||
            config.groups[equal].query_growth != group.query_growth ||
            has_index_table(config.groups[equal].problem) != has_index_table(group.problem))) {
      ++equal;
    }
    if (equal < g) {
      rope.of_group.push_back(rope.of_group[equal]);
      continue;
    }
    auto tables = tables_of(group, config.mla.index_pairing, positions);
    if (!tables) return tables.error();
    rope.of_group.push_back(rope.tables.size());
    rope.tables.push_back(std::move(*tables));
  }
  made_ = std::make_shared<const ModelRope>(std::move(rope));
  return made_;
}

}  // namespace lathe
