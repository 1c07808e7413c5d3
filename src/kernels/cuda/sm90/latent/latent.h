// Latent attention on Hopper: computes what cpu_attend_latent does, on cached pages, with bf16
// products, or f16 ones on fp8 pages, and f32 accumulators. Kinds inplace (pages) and gather
// (compact bf16 rows), all phases. Kind native, for an e4m3 q on mla_fp8 pages: the same by page
// table in fp8 products.
//
// The schedule and the workspace belong to the caller, are sized by maxima and may be shared by all
// layers of a step. Nothing waits or allocates, so everything can be captured in a graph and
// replayed on other contents.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <source_location>
#include <span>

#include "attn/attend.h"
#include "attn/work_list.h"
#include "base/result.h"
#include "kernels/cuda/sm90/latent/latent_limits.h"
#include "kernels/cuda/sm90/latent/schedule/share.h"
#include "kernels/cuda/sm90/step/step.h"

namespace lathe::cuda {

/// fp8 pages that index lists point to.
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
  std::int64_t keys = 0;  // most keys of a work tile: of a request, or of an index row's sources
  std::int32_t heads = 0;
  bool dense = false;  // by page table; else by index list
  bool fp8 = false;    // products
  /// Keys are on fp8 pages: kernels then also take more than 32 M rows of a work tile in several
  /// small M blocks, and m64 takes single tiles of keys where products are not fp8.
  bool fp8_pages = false;
  std::int32_t min_block_m = 16;  // of a block, where a work tile has more than 32 M rows
  /// Not 0: batch-invariant. Work tiles are cut by their own keys alone, into pieces of about so
  /// many, and kernels are chosen by heads and request_rows.
  std::int64_t fixed_keys = 0;
  int sms = 132;
  LatentPool main = {}, extra = {};  // of listed sources, for cut_latent() to stage
  std::int64_t tokens = 0;           // most listed tokens in all; 0: what the pools hold
};

/// Pages of a source that are decoded into the workspace before the attention.
struct LatentStage {
  LatentPool pool;
  std::int64_t rows = 0;  // of lists
  std::int64_t room = 0;  // pages; 0: read in place
  /// With the rewritten lists.
  std::int64_t bytes() const;
};

/// How work tiles are split among workers.
struct LatentShares {
  std::int64_t work_tiles = 0;
  WorkOptions work;
  std::int64_t items = 0;            // at most
  std::int64_t work_tile_items = 0;  // of one work tile, at most

  bool cut() const { return work_tile_items > 1; }
};

/// How a shape is cut: M rows per block, workers, and splits of keys. Work tiles are requests where
/// dense, else rows.
struct LatentCut {
  std::int32_t block_m = 64;  // 8, 16, 32: swap_ab; 64: m64
  std::int32_t m_blocks = 1;  // per work tile
  std::int64_t keys = 0;      // of one work tile, at most
  LatentShares all;           // all work tiles but those of `tail`
  // The last rows, split, where they would leave most workers idle in a last wave; a launch of
  // their own.
  LatentShares tail;
  LatentStage main, extra;  // where `all` are not split
  // The device shares `all` among workers by the keys that exist: keys and what is split by their
  // bound is then only where equal lengths begin.
  bool shared = false;
  std::int32_t fixed = 0;         // LatentSharing's
  LatentWorkCosts costs;          // where shared
  std::int64_t shared_parts = 0;  // partials, at most

  std::int64_t work_tiles() const { return all.work_tiles + tail.work_tiles; }
  /// Items of split work tiles, at most: each leaves a partial, f32 or f16 (partials.cuh), with
  /// room for f32, and its LSE.
  std::int64_t partials() const {
    return shared ? shared_parts : all.cut() ? all.items : tail.cut() ? tail.items : 0;
  }
  /// Of LatentSchedule::split_tiles, where shared: with an end.
  std::int64_t split_entries() const;
  std::int64_t partial_bytes() const;  // a multiple of 256
  /// Partials and staged pages.
  std::int64_t workspace_bytes() const;
};
/// By index lists, one wave of blocks where that is nearly balanced: splitting costs the partials'
/// way through memory and a prologue and epilogue each; of many listed rows only the last ones are
/// split. By page table, up to kShareTiles requests are shared on the device (share_work.cuh).
/// Where 64 M rows per block would leave SMs idle, smaller M blocks are chosen. Where many rows
/// list the same fp8 pages (shape.main, shape.extra), staging these costs less than converting each
/// key for every row. workspace_bytes() stays within kLatentPartialBytes.
LatentCut cut_latent(const LatentShape& shape);

/// Bytes within which schedule and workspace of every shape stay whose rows, requests,
/// request_rows, keys and pools are at most those of `most`, the rest being equal.
std::int64_t latent_workspace_bytes(const LatentShape& most);

/// Work lists over the work tiles, on the device.
struct LatentSchedule {
  LatentCut cut;
  WorkBuffers list, tail;                  // of cut.all and cut.tail
  std::span<LatentSplitTile> split_tiles;  // where the device shares: what the combine writes
  std::span<std::int32_t> work_tile_keys;  // [work_tiles]
  std::span<std::int64_t> work_workspace;  // work_workspace(work_tiles) entries (step/step.h)
};
/// Calls take(span, entries) for each array of a schedule.
template <class Take>
void take_arrays(LatentSchedule& schedule, const Take& take) {
  const LatentCut& cut = schedule.cut;
  const auto list = [&](WorkBuffers& buffers, const LatentShares& shares) {
    take(buffers.items, shares.items);
    if (!cut.shared) take(buffers.row_items, shares.work_tiles + 1);
    take(buffers.worker_items, shares.work.workers + std::int64_t{1});
  };
  list(schedule.list, cut.all);
  if (cut.shared) {
    take(schedule.split_tiles, cut.split_entries());
    return;
  }
  if (cut.tail.work_tiles > 0) list(schedule.tail, cut.tail);
  take(schedule.work_tile_keys, cut.work_tiles());
  take(schedule.work_workspace, work_workspace(cut.work_tiles()));
}
/// Fills the schedule from the lengths on the device: 1 launch where the device shares, else 2, one
/// more with a tail and one more above 4096 work tiles. args: all but q, out and lse. Errors: lists
/// that are too small for the cut; a failed launch.
Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream,
                         std::source_location where = std::source_location::current());

/// LatentShape::fp8_pages of a call on these keys.
bool has_fp8_pages(const KeySource& s);

/// The pool whose slots a source's lists hold; none where it is not fp8.
LatentPool listed_pool(const KeySource& s);
/// Stages as many pages of shape's pools as kLatentPartialBytes hold, whether it pays or not; none
/// where the cut is not one of whole work tiles of 64 M rows by index lists.
void stage_latent(const LatentShape& shape, LatentCut& cut);

/// All of args' spans and views point to the device; execution is not used. row_request: [rows],
/// where index lists hold positions (a page table is given too), else empty.
///
/// q bf16, out bf16, lse f32 or null. Layouts mla_bf16, mla_fp8, mla_fp8_block at 512 + 64, v4_fp8
/// and bf16 rows at 448 + 64; v_dim 512. Scales in fp8 pages are between 2^-15 and 2^7
/// (latent_limits.h). Or q e4m3 with q_scale on mla_fp8 by page table, rows and pages at multiples
/// of 16 bytes: P is then rounded to e4m3, so outputs are off by a few percent of sqrt(sum of p^2
/// v^2) (bench/notes/native-fp8/05-accuracy.md).
///
/// Where the cut stages pages and lists point to more of them than there is room for, pages are
/// read in place.
///
/// Errors: those of check_latent_call (latent_call.h); a workspace or a schedule's lists that are
/// too small; pools other than those that the cut stages; a failed launch. On an error nothing was
/// launched.
Result<void> attend_latent(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule, std::span<std::byte> workspace,
                           cudaStream_t stream,
                           std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
