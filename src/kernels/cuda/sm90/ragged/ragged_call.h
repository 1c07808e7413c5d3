// Turns a call of attention over expanded keys into its kernels' parameters: passes, device memory
// and launch parameters. Makes no CUDA call.
//
// A pass covers some requests and some heads. Requests are grouped so that their keys fit the
// workspace. Each group gathers its latents once and then runs a pass for one set of heads after
// another. Each row of out is written by exactly one pass, so passes need no merging.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"
#include "base/result.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/ragged/ragged_limits.h"
#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

/// Sizes that follow from the host's bounds of a call; the lengths themselves are on the device.
struct RaggedShape {
  GqaShape gqa;                 // of a pass
  std::int64_t requests = 0;    // of a pass
  std::int32_t heads = 0;       // of a pass, a divisor of the problem's
  std::int64_t keys = 0;        // most keys of a pass
  std::int64_t list_bytes = 0;  // work list, and each request's first key
  std::int64_t pass_bytes = 0;  // partials, slots, latents, expanded keys and values

  std::int64_t bytes() const { return list_bytes + pass_bytes; }
  /// True: one work list serves the calls of all layers. False: each pass makes its own.
  bool shares_list(const AttendArgs& args) const { return requests >= std::ssize(args.kv_lens); }
};

/// Checks a call. Errors, by argument: dtypes, widths, alignment, bounds.
Result<void> check_ragged_call(const AttendArgs& args);

/// Limits of a pass.
struct RaggedRoom {
  std::int64_t workspace = kRaggedWorkspaceBytes;
  std::int64_t pass_tiles = kRaggedPassTiles;
};

/// sms: of the device. args must have passed their check. Errors: a request whose keys, expanded
/// for least_expanded_heads() heads (attn/expansion.h), do not fit the workspace.
Result<RaggedShape> ragged_shape(const AttendArgs& args, int sms, const RaggedRoom& room = {});

/// attend_ragged_on_device() for a checked call with a given shape.
Result<void> attend_ragged_as_cut(const AttendArgs& args, const RaggedShape& shape);

/// The part of a call for `count` requests, beginning with `first`.
AttendArgs requests_at(const AttendArgs& args, std::int64_t first, std::int64_t count);

/// Parameters of a pass over heads beginning with `head`. args: for the requests of the pass. list,
/// pass: device memory, aligned to 256, of the sizes that shape says.
RaggedParams ragged_params(const AttendArgs& args, const RaggedShape& shape, std::int32_t head,
                           std::byte* list, std::byte* pass);

}  // namespace lathe::cuda
