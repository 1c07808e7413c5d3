// Finds the lowest-ranking tokens that top_k and top_p keep, by radix select on the weights' bits.
#pragma once

#include <cstdint>

#include "kernels/cpu/sampling/sampling_loops.h"

namespace lathe {

struct SelectMemory {
  WeightBin* bins = nullptr;        // [kWeightBins + kSpareBins]
  Candidate* candidates = nullptr;  // [vocab]
};

/// The k-th token that `from` keeps; `from` itself if it keeps at most k. Weights are at most 1; n
/// is a multiple of kSumBlock.
Cut cut_top_k(const double* weights, std::int64_t n, const Cut& from, std::int64_t k,
              const SelectMemory& memory);

/// The first token, by rank, at which the sum of weights reaches p < 1 times the sum of all weights
/// that `from` keeps.
Cut cut_top_p(const double* weights, std::int64_t n, const Cut& from, double p,
              const SelectMemory& memory);

}  // namespace lathe
