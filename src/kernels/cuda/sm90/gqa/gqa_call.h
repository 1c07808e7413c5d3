// A call of grouped-query attention as its kernels get it: block sizes, what it keeps in memory of
// the device, parameters. No CUDA call is made here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"
#include "base/result.h"
#include "kernels/cuda/sm90/gqa/gqa_params.h"

namespace lathe::cuda {

/// The bounds that a call's shape follows from; lengths are the device's.
struct GqaShape {
  std::int32_t block_m = 8;     // M rows of a block: 8, 16, 32 or 64, or 128 of many
  std::int32_t tile = 64;       // keys
  std::int64_t max_blocks = 0;  // M blocks
  std::int32_t workers = 0;     // resident blocks
  // Of the device's memory, multiples of 256.
  std::int64_t schedule_bytes = 0;
  std::int64_t partial_bytes = 0;

  std::int64_t bytes() const { return schedule_bytes + partial_bytes; }
};

/// Errors: what the kernels do not take, by argument: dtypes, head dims, pages, index lists,
/// alignment, bounds.
Result<void> check_gqa_call(const AttendArgs& args);

/// sms: of the device. args have passed their check.
GqaShape gqa_shape(const AttendArgs& args, int sms);

/// schedule, partials: memory of the device, as many bytes as shape says at a multiple of 256.
GqaParams gqa_params(const AttendArgs& args, const GqaShape& shape, std::byte* schedule,
                     std::byte* partials);

}  // namespace lathe::cuda
