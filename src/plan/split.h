// The rules of sharing a model among ranks: what may be cut where, and which way to share experts
// is the fastest.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/ranks.h"
#include "base/result.h"
#include "plan/plan_request.h"
#include "plan/reason.h"

namespace lathe {

/// A tensor that is cut between heads or groups, and whose scales are of blocks.
struct BlockTensor {
  std::string name;          // "o_proj"
  std::int32_t units = 0;    // heads, KV heads or groups of the whole model
  std::int64_t each = 0;     // rows (or columns) of a unit
  std::int64_t block = 128;  // rows that share a scale
  bool always = false;       // no rank can read a part of a block, on no device

  bool operator==(const BlockTensor&) const = default;
};

/// Bytes that a GPU reads in a quarter of a microsecond, an eighth of the least time of an
/// exchange.
inline constexpr std::int64_t kSmallWidth = 1 << 20;

/// What the rules read of a model.
struct SplitModel {
  SplitSizes sizes;
  std::vector<BlockTensor> tensors;
  std::int64_t top_k = 0;  // experts of a row
  // A width of fewer blocks than ranks leaves some ranks without any of it. That is allowed where
  // it costs next to nothing: below a hundredth of all weights' bytes, or up to kSmallWidth in a
  // layer.
  double ffn_part = 0, shared_part = 0;          // of all weights' bytes
  std::int64_t ffn_bytes = 0, shared_bytes = 0;  // of a layer
  // False on a CPU: ranks may have no block of a width, and shares may cut blocks of scales, which
  // the loader then widens to f32.
  bool whole_blocks = true;
};

/// A way to share experts: the width of each among `width` ranks, the experts among `number`
/// groups of these.
struct ExpertSplit {
  std::int32_t width = 1, number = 1;
  // The most bytes of experts that a rank reads in a step, as a multiple of the mean over ranks.
  double cost = 1;

  std::string text() const;  // "4x2"
  bool operator==(const ExpertSplit&) const = default;
};

/// E[max] / mean over `groups` groups of experts of how many experts of a group `rows` rows
/// choose, each row top_k of `experts`, evenly: as if the groups' numbers were independent and
/// normal.
double number_imbalance(std::int64_t experts, std::int64_t top_k, std::int32_t groups,
                        std::int64_t rows);

/// The legal ways for `ranks` ranks, the cheapest first for steps of `rows` rows, of equal ones the
/// one with more width. Empty: there is none. Precondition: the model has experts.
std::vector<ExpertSplit> expert_splits(const SplitModel& model, std::int32_t ranks,
                                       std::int64_t rows);

/// Chooses how request.tp ranks share the model. Errors: every rule broken (Rule::ranks), with the
/// tensor or count; a bad --expert-split, or one of a model without experts (Rule::request).
Result<Parallel, std::vector<Reason>> choose_split(const SplitModel& model,
                                                   const PlanRequest& request);

}  // namespace lathe
