// The indexer's choice of keys for the rows of one segment (DeepSeek sparse attention).
#pragma once

#include <cstdint>
#include <span>

#include "attn/step.h"
#include "base/result.h"
#include "base/rows_view.h"
#include "layout/pool_view.h"
#include "ops/context.h"

namespace lathe {

struct SelectKeys {
  const StepView* step = nullptr;
  ConstPoolView keys;  // the layer's index pages, numbered as the main pool's
  PoolShape main;      // the pool that attention reads
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  // Rotated queries and their heads' weights, neither quantised nor scaled. Both without rows where
  // step->selecting_rows is 0: then nothing is ranked.
  RowsView q = {};        // [rows, heads * dim] f32
  RowsView weights = {};  // [rows, heads] f32
  std::int64_t k = 0;
  std::int64_t budget_bytes = 0;  // the plan's budget "indexer logits"
  std::span<std::int32_t> slots;  // [rows, k] out: slots of the main pool by position, then -1
};

/// Quantises the queries (index_fp8's policy, no Hadamard rotation) and selects the k best of the
/// keys that each row sees; rows with at most k keys get all of them. Errors: those of
/// index_quantize_q() and index_top_k().
Result<void> select_keys(const OpsContext& ops, const SelectKeys& op);

}  // namespace lathe
