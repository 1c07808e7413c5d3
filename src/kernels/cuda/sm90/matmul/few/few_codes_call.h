// Plans launches of the GEMM of e4m3 weights for few tokens: host arithmetic, tested without a GPU.
#pragma once

#include <optional>
#include <span>

#include "kernels/cuda/sm90/matmul/few/few_codes_params.h"
#include "kernels/cuda/sm90/matmul/matmul.h"

namespace lathe::cuda {

/// Fewest columns of weights that the kernel is used for: shorter rows have not been timed.
inline constexpr std::int64_t kFewCodesLeastColumns = 1024;

struct FewCodesLaunch {
  FewCodesParams params;
  FewCodesInstance instance;
};

/// For calls that matmul_on_device() accepts; none if the kernel does not support them or is
/// not faster: more than 8 tokens, or than 4 where a block has one unit; weights or tokens of
/// another type; tokens and sums that shared memory has no room for. split: parts of K.
std::optional<FewCodesLaunch> make_few_codes(std::span<const MatmulCall> calls, int split, int sms);

}  // namespace lathe::cuda
