// RankPlan: how ranks share a model, what they exchange in a step, and what that costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attn/machine.h"
#include "attn/ranks.h"
#include "base/dtype.h"
#include "base/enum.h"
#include "base/result.h"
#include "plan/plan_request.h"
#include "plan/reason.h"

namespace lathe {

/// How partial sums reach the other ranks.
// clang-format off
#define LATHE_EXCHANGE_KINDS(X)                                  \
  X(none, "one rank exchanges nothing")                          \
  X(host, "threads of a CPU read each other's memory")           \
  X(peer, "GPUs write into each other's memory, with own kernels") \
  X(nccl, "NCCL's collectives")
// clang-format on
LATHE_ENUM_WITH_TEXT(ExchangeKind, LATHE_EXCHANGE_KINDS)

struct ExchangePlan {
  ExchangeKind kind = ExchangeKind::none;
  DType dtype = DType::f32;  // of a partial
  // Of an exchange of many rows each rank sums rows of its own; else each reads all of the others'.
  bool divided = false;
  std::int64_t width = 0;      // elements of a row: the hidden size
  std::int64_t in_layers = 0;  // exchanges of all layers in a step; the embedding and the logits
                               // need two more
  // peer: most rows that are pushed; longer exchanges are pulled or divided.
  std::int64_t push_rows = 0;
  double base_seconds = 0;      // of an exchange without bytes; 0: not known
  double bytes_per_second = 0;  // of a rank's link

  std::int64_t row_bytes() const { return bytes_of(dtype, width); }
  bool operator==(const ExchangePlan&) const = default;
};

/// The least time of a decode step: weights and cache at the memory's measured rate, and exchanges.
struct RankFloor {
  std::int64_t rows = 0;
  double memory_seconds = 0;
  double exchange_seconds = 0;

  bool operator==(const RankFloor&) const = default;
};

struct RankPlan {
  Parallel parallel;
  std::string device;  // "H200"
  SplitSizes whole;    // the model's
  // The largest range of each part that a rank has (`first` is 0): what a rank's buffers are for.
  Share most;
  std::int32_t fullest = 0;           // the rank with most bytes of weights
  std::int64_t weight_bytes = 0;      // its weights
  std::int64_t replicated_bytes = 0;  // of them, what every rank has whole
  ExchangePlan exchange;
  std::vector<RankFloor> floors;
  std::vector<std::string> notes;

  bool operator==(const RankPlan&) const = default;
};

/// The largest ranges of any rank.
Share largest_share(const SplitSizes& sizes, const Parallel& parallel);

/// Chooses the exchange. divided: the sum of a row may be on one rank alone. Errors (Rule::ranks):
/// fewer devices than request.tp; --exchange peer without peer access; neither peer access nor
/// NCCL; f32 partials on GPUs; peer or nccl on a CPU.
Result<ExchangePlan, Reason> plan_exchange(const Machine& machine, const PlanRequest& request,
                                           std::int64_t width, std::int64_t layers, bool divided);

/// Least seconds of one exchange of `rows` rows among `ranks` ranks. 0 if not known.
double exchange_seconds(const ExchangePlan& exchange, std::int32_t ranks, std::int64_t rows);

/// Bytes that exchanges of at most `rows` rows need on each rank: three planes that peers push
/// into, whole rows or parts of up to 256 divided ones, and a buffer that they pull from. On a CPU
/// the partial alone.
std::int64_t exchange_bytes(const ExchangePlan& exchange, std::int32_t ranks, std::int64_t rows);

}  // namespace lathe
