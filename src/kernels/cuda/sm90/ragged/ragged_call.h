// A call of attention over expanded keys as its kernels get it: passes, what they keep in memory of
// the device, parameters. No CUDA call is made here.
//
// A pass is some requests and some heads: as many requests as have room for their keys, and for
// each such group, whose latents are gathered once, heads after heads. Every row of out is written
// by one pass, so nothing is merged between them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attn/attend.h"
#include "base/result.h"
#include "kernels/cuda/sm90/gqa/gqa_call.h"
#include "kernels/cuda/sm90/ragged/ragged_limits.h"
#include "kernels/cuda/sm90/ragged/ragged_params.h"

namespace lathe::cuda {

/// The bounds that a call's shape follows from; lengths are the device's.
struct RaggedShape {
  GqaShape gqa;                 // of a pass
  std::int64_t requests = 0;    // of a pass
  std::int32_t heads = 0;       // of a pass, a divisor of the problem's
  std::int64_t keys = 0;        // of a pass, at most
  std::int64_t list_bytes = 0;  // the work list and where requests begin
  std::int64_t pass_bytes = 0;  // partials, slots, latents, expanded keys and values

  std::int64_t bytes() const { return list_bytes + pass_bytes; }
  /// One list serves the calls of all layers; else each pass makes its own.
  bool shares_list(const AttendArgs& args) const { return requests >= std::ssize(args.kv_lens); }
};

/// Errors: what the kernels do not take, by argument: dtypes, widths, alignment, bounds.
Result<void> check_ragged_call(const AttendArgs& args);

/// What a pass keeps to.
struct RaggedRoom {
  std::int64_t workspace = kRaggedWorkspaceBytes;
  std::int64_t pass_tiles = kRaggedPassTiles;
};

/// sms: of the device. args have passed their check. Errors: a request whose keys of
/// least_expanded_heads() heads (attn/expansion.h) do not fit the workspace.
Result<RaggedShape> ragged_shape(const AttendArgs& args, int sms, const RaggedRoom& room = {});

/// attend_ragged_on_device() of a call that has been checked, cut like this.
Result<void> attend_ragged_as_cut(const AttendArgs& args, const RaggedShape& shape);

/// The call of `count` requests from `first` on.
AttendArgs requests_at(const AttendArgs& args, std::int64_t first, std::int64_t count);

/// Of the heads from `head` on. args: of the requests of the pass. list, pass: memory of the
/// device, as many bytes as shape says at a multiple of 256.
RaggedParams ragged_params(const AttendArgs& args, const RaggedShape& shape, std::int32_t head,
                           std::byte* list, std::byte* pass);

}  // namespace lathe::cuda
