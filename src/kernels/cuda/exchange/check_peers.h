// Sums with known results, run at start. With some settings of the IOMMU peer access can be
// enabled, and yet copies between two GPUs are wrong.
#pragma once

#include <functional>
#include <span>

#include "base/result.h"
#include "kernels/communicator.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/sm90/exchange/exchange.h"

namespace lathe::cuda {

/// Communicator::agree() of this rank.
using Agree = std::function<Result<void>(const Result<void>&)>;

/// Sums by push and by pull, at the smallest and the largest sizes of a push. All ranks call it.
/// Errors, the same on all ranks: a sum in which some rank's part is wrong, named by the pair of
/// GPUs; a peer that does not come; out of memory.
Result<void> test_sums(const ExchangePeers& peers, const ExchangeLaunch& launch,
                       const ExchangeLimits& limits, std::span<const int> gpus,
                       const Stream& stream, const Agree& agree);

/// The first rank with a wrong part in `sum`, the sum of all ranks' test_part(i, rank); -1: none.
int wrong_part(float sum, std::int64_t i, int ranks);
/// What `rank` contributes to element i: two bits of the sum, which so shows each rank's part.
/// Exact in bf16.
float test_part(std::int64_t i, int rank);

}  // namespace lathe::cuda
