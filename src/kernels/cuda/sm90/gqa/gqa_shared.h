// Calls with shared prefixes (attn/shared_prefixes.h): attention of groups over shared keys,
// attention of requests over their own keys, and a join of each row's parts by LSE.
//
//   groups    GqaParams with slots for rows and groups for requests    -> parts of slots
//   requests  GqaParams that begin where the request's groups end      -> a part of each row
//   join      for each row: its slots' parts, then its own             -> out
//
// Both calls write f32 results without a sink. Work items that several workers share stay partials
// (gqa_params.h), which the join reads too, so neither call has a combine kernel. Makes no CUDA
// call.
#pragma once

#include "kernels/cuda/sm90/gqa/gqa_call.h"

namespace lathe::cuda {

struct GqaSharedShape {
  GqaShape groups, requests;
  // Device memory, multiples of 256.
  std::int64_t schedule_bytes = 0;
  std::int64_t partial_bytes = 0;
  std::int64_t part_bytes = 0;  // f32 results of both calls

  std::int64_t bytes() const { return schedule_bytes + partial_bytes + part_bytes; }
};

/// args: with prefixes; they must have passed check_gqa_call().
GqaSharedShape gqa_shared_shape(const AttendArgs& args, int sms);

/// schedule: device memory of schedule_bytes; rest: of the others. Both are aligned to 256.
GqaJoin gqa_shared_params(const AttendArgs& args, const GqaSharedShape& shape, std::byte* schedule,
                          std::byte* rest);

/// Checks the size of the lists. Errors: the field `prefixes`.
Result<void> check_gqa_prefixes(const AttendArgs& args);

}  // namespace lathe::cuda
