// Where top_k and top_p cut the ranks, found by radix select on the bits of the weights.
#pragma once

#include <cstdint>

#include "kernels/cpu/sampling/sampling_loops.h"

namespace lathe {

struct SelectMemory {
  WeightBin* bins = nullptr;        // [kWeightBins + kSpareBins]
  Candidate* candidates = nullptr;  // [vocab]
};

/// The k-th of what `from` keeps; `from` where that is no more than k. Weights are at most 1,
/// n is a multiple of kSumBlock.
Cut cut_top_k(const double* weights, std::int64_t n, const Cut& from, std::int64_t k,
              const SelectMemory& memory);

/// The first at which the sum of kept weights reaches p < 1 times that of what `from` keeps.
Cut cut_top_p(const double* weights, std::int64_t n, const Cut& from, double p,
              const SelectMemory& memory);

}  // namespace lathe
