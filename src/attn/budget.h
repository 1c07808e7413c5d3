// Bytes of every large buffer of a plan, asked before anything is allocated. A buffer has a ceiling
// and work is tiled to fit it.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/machine.h"
#include "attn/plan.h"
#include "attn/reason.h"
#include "attn/wishes.h"

namespace lathe {

/// Dense latent keys are gathered, and their partial softmax folded, in runs of a multiple of this
/// many: what a gather workspace holds at least, unless a request has fewer.
inline constexpr std::int64_t kGatherTileKeys = 1024;

/// The largest step that buffers are sized for.
struct Demand {
  std::int64_t rows = 0;  // query rows
  std::int64_t requests = 0;
  std::int64_t context = 0;  // tokens of the longest request
};

/// Buffers of `plan` at `demand`: indexer logits, top-k rows, gather workspace, split partials, rows
/// of expanding workers, compressor state, step metadata. Zero-sized ones are left out.
std::vector<Budget> budgets_for(const Plan& plan, const Machine& machine, const Wishes& wishes,
                                Demand demand);

/// Bytes of the plan's pools for a number of tokens, all layers.
std::int64_t cache_bytes(const Plan& plan, std::int64_t tokens);

/// What the budgets cannot hold: one row's tile beyond its ceiling (Rule::budget), or cache and
/// buffers beyond the machine (Rule::memory). Only plans for which --max-total-tokens was given are
/// held against the machine's memory.
std::vector<Reason> check_budgets(const Plan& plan, const Machine& machine, const Wishes& wishes);

}  // namespace lathe
