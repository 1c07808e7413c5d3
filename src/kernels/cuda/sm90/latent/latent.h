// Latent attention on Hopper: what cpu_attend_latent computes, on the cache's pages, in bf16 arithmetic, or
// f16 on fp8 pages, with f32 sums. Kinds inplace (pages) and gather (compact bf16 rows), all phases. Kind native, for an
// e4m3 q on mla_fp8 pages: the same by page table in fp8 arithmetic.
//
// The schedule and the workspace belong to the caller, are sized by maxima and may be shared by all
// layers of a step; nothing waits or allocates, so that everything can be captured in a graph and
// replayed over other contents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>
#include <span>

#include "attn/attend.h"
#include "attn/work_list.h"
#include "base/result.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {

/// fp8 pages that index lists name.
struct LatentPool {
  std::int64_t pages = 0;  // 0: there are none
  std::int64_t page_tokens = 0;
  std::int64_t row_elems = 0;  // of a token
  std::int64_t width = 0;      // of a row's list

  bool operator==(const LatentPool&) const = default;
};

/// Bounds of the calls that a schedule serves.
struct LatentShape {
  std::int64_t rows = 0;  // of q
  std::int64_t requests = 0;
  std::int64_t request_rows = 1;  // most rows of one request
  std::int64_t keys = 0;          // most keys of a unit: of a request, or of an index row's sources
  std::int32_t heads = 0;
  bool dense = false;  // by page table; else by index list
  bool fp8 = false;    // arithmetic
  /// Keys come from fp8 pages: kernels take more than 32 lines of a unit in several tiles of few, too, and those
  /// for 64 lines take single tiles of keys where arithmetic is not fp8.
  bool fp8_pages = false;
  std::int32_t least_lines = 16;  // of a block, where a unit has more than 32
  int processors = 132;
  LatentPool main = {}, extra = {};  // of sources that lists name, for cut_latent() to stage them
  std::int64_t tokens = 0;           // most that lists name, all together; 0: what the pools hold
};

/// Pages of a source that are decoded into the workspace before they are attended to.
struct LatentStage {
  LatentPool pool;
  std::int64_t rows = 0;  // of lists
  std::int64_t room = 0;  // pages; 0: they are read where they lie
  /// With the lists of where they are.
  std::int64_t bytes() const;
};

/// How units are shared out.
struct LatentShares {
  std::int64_t units = 0;
  WorkOptions work;
  std::int64_t items = 0;       // at most
  std::int64_t unit_items = 0;  // of one unit, at most

  bool cut() const { return unit_items > 1; }
};

/// How a shape is cut: which lines share a block, among how many workers, where keys may be cut. Units are requests
/// where dense, else rows.
struct LatentCut {
  std::int32_t tile_lines = 64;  // 8, 16, 32: the kernels for few lines; 64: those for many
  std::int32_t tiles = 1;        // of lines in a unit
  std::int64_t keys = 0;         // of one unit, at most
  LatentShares all;              // but for those of `tail`
  // The last rows, cut, where they would leave most workers idle in a last round; a launch of their own.
  LatentShares tail;
  LatentStage main, extra;  // where `all` are not cut

  std::int64_t units() const { return all.units + tail.units; }
  /// Items of units that are cut, at most: each leaves values, f32 or f16 (partials.cuh), for which
  /// there is room as f32, and logarithms of sums.
  std::int64_t parts() const { return all.cut() ? all.items : tail.cut() ? tail.items : 0; }
  std::int64_t part_bytes() const;  // a multiple of 256
  /// Parts, and what is staged.
  std::int64_t workspace_bytes() const;
};
/// One wave of blocks where that is nearly balanced: cutting a row costs its parts' way through
/// memory and a part of the pipeline's filling and emptying. Of many rows with lists only the last ones are cut. Where
/// 64 lines a block would leave processors idle, they go to several blocks.
/// Where many rows' lists name the same fp8 pages, which shape.main and shape.extra tell of, decoding these first
/// takes less time than converting each key once for every row. workspace_bytes() stays within kLatentPartBytes.
LatentCut cut_latent(const LatentShape& shape);

/// Work lists over the units, on the device.
struct LatentSchedule {
  LatentCut cut;
  WorkBuffers list, tail;                  // of cut.all and cut.tail
  std::span<std::int32_t> unit_keys;       // [units]
  std::span<std::int64_t> work_workspace;  // work_workspace(units) entries (step/step.h)
};
/// Has a schedule's arrays taken: take(span, entries) for each of them.
template <class Take>
void take_arrays(LatentSchedule& schedule, const Take& take) {
  const LatentCut& cut = schedule.cut;
  const auto list = [&](WorkBuffers& buffers, const LatentShares& shares) {
    take(buffers.items, shares.items);
    take(buffers.row_items, shares.units + 1);
    take(buffers.worker_items, shares.work.workers + std::int64_t{1});
  };
  list(schedule.list, cut.all);
  if (cut.tail.units > 0) list(schedule.tail, cut.tail);
  take(schedule.unit_keys, cut.units());
  take(schedule.work_workspace, work_workspace(cut.units()));
}
/// Fills the schedule from the lengths on the device: 2 launches, one more with a tail and one more above 4096 units. args:
/// all but q, out and lse. Errors: lists that are too small for the cut; a failed launch.
Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream,
                         std::source_location where = std::source_location::current());

/// LatentShape::fp8_pages of a call whose keys are those.
bool has_fp8_pages(const KeySource& s);

/// The pages that a source's lists name, none where they aren't fp8.
LatentPool listed_pool(const KeySource& s);
/// Stages as many pages of shape's pools as kLatentPartBytes hold, whether it pays or not; none where the cut is not
/// one of whole units of 64 lines by index lists.
void stage_latent(const LatentShape& shape, LatentCut& cut);

/// All of args' spans and views point to the device; execution is not used. row_request: [rows], where
/// index lists hold positions (a page table is given too), else empty.
///
/// q bf16, out bf16, lse f32 or null. Layouts mla_bf16, mla_fp8, mla_fp8_block at 512 + 64, v4_fp8 and
/// bf16 rows at 448 + 64; v_dim 512. Scales in fp8 pages lie between 2^-15 and 2^7 (latent_limits.h). Or q e4m3 with q_scale on mla_fp8 by page table, rows and pages at
/// multiples of 16 bytes: weights are rounded to e4m3 then, so that outputs are off by a few percent of
/// sqrt(sum of w^2 v^2) (bench/notes/native-fp8/05-accuracy.md).
///
/// Where cut says that pages are staged and the lists name more of them than there is room for, pages are
/// read where they lie.
///
/// Errors: those of check_latent_call (latent_call.h); a workspace or a schedule's lists
/// that are too small; pools that aren't those of a cut that stages them; a failed launch. On an error
/// nothing was launched.
Result<void> attend_latent(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule, std::span<std::byte> workspace,
                           cudaStream_t stream,
                           std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
