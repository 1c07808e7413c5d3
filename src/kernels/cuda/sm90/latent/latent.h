// Latent attention on Hopper: computes what cpu_attend_latent does, on cached pages, with bf16
// operands (f16 for fp8 pages) and f32 accumulators. Kinds `inplace` (pages) and `gather` (compact
// bf16 rows), for prefill, decode and verify steps. Kind `native`, for an e4m3 q on mla_fp8 pages,
// computes the same with fp8 operands.
//
// The caller owns schedule and workspace. Both are sized by maxima, and all layers of a step may
// share them. Nothing waits or allocates, so calls can be captured in a graph and replayed on other
// contents.
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

/// The pool of fp8 pages that index lists point to.
struct LatentPool {
  std::int64_t pages = 0;  // 0: there are none
  std::int64_t page_tokens = 0;
  std::int64_t row_elems = 0;  // of a token
  std::int64_t width = 0;      // entries of a row's list

  bool operator==(const LatentPool&) const = default;
};

/// Bounds of the calls that a schedule can serve.
struct LatentShape {
  std::int64_t rows = 0;  // of q
  std::int64_t requests = 0;
  std::int64_t request_rows = 1;  // most rows of one request
  std::int64_t keys = 0;          // most keys of a work tile: a request's, or those in an index row
  std::int32_t heads = 0;
  bool dense = false;  // keys by page table; else by index lists
  bool fp8 = false;    // fp8 operands (kind native)
  /// Keys are on fp8 pages. Kernels then support several small M blocks for a work tile of more
  /// than 32 M rows, and m64 (unless `fp8`) supports an odd number of key tiles.
  bool fp8_pages = false;
  std::int32_t min_block_m = 16;  // least M block where a work tile has more than 32 M rows
  /// Not 0: batch-invariant. Work tiles are split by their own number of keys alone, into about
  /// this many keys each, and kernels are chosen by heads and request_rows.
  std::int64_t fixed_keys = 0;
  int sms = 132;
  LatentPool main = {}, extra = {};  // pools of listed keys, which cut_latent() may stage
  std::int64_t tokens = 0;           // most listed tokens in all; 0: the pools' capacity
};

/// Pages of a source that are decoded to the workspace before attention.
struct LatentStage {
  LatentPool pool;
  std::int64_t rows = 0;  // of lists
  std::int64_t room = 0;  // pages that fit; 0: pages are read in place
  /// Bytes, including the rewritten lists.
  std::int64_t bytes() const;
};

/// How work tiles are split and distributed among workers.
struct LatentShares {
  std::int64_t work_tiles = 0;
  WorkOptions work;
  std::int64_t items = 0;            // most work items
  std::int64_t work_tile_items = 0;  // most items of one work tile

  bool cut() const { return work_tile_items > 1; }
};

/// How a call is scheduled: M block size, workers, and splits of keys. A work tile is a request if
/// dense, else a row.
struct LatentCut {
  std::int32_t block_m = 64;  // 8, 16, 32: swap_ab; 64: m64
  std::int32_t m_blocks = 1;  // of a work tile
  std::int64_t keys = 0;      // most keys of a work tile
  LatentShares all;           // all work tiles except those in `tail`
  // The last rows. Where they would leave most workers idle in a last wave, they are split and get
  // a launch of their own.
  LatentShares tail;
  LatentStage main, extra;  // used where `all` is not split
  // The device distributes `all` among workers by actual lengths. `keys` and `all` then only say
  // how work is split where all lengths are equal.
  bool shared = false;
  std::int32_t fixed = 0;         // LatentSharing::fixed
  LatentWorkCosts costs;          // where shared
  std::int64_t shared_parts = 0;  // most partials

  std::int64_t work_tiles() const { return all.work_tiles + tail.work_tiles; }
  /// Most items of split work tiles. Each writes a partial, f32 or f16 (partials.cuh) with space
  /// for f32, and its LSE.
  std::int64_t partials() const {
    return shared ? shared_parts : all.cut() ? all.items : tail.cut() ? tail.items : 0;
  }
  /// Entries of LatentSchedule::split_tiles with its end mark, where shared.
  std::int64_t split_entries() const;
  std::int64_t partial_bytes() const;  // a multiple of 256
  /// Bytes of partials and staged pages.
  std::int64_t workspace_bytes() const;
};
/// Chooses a schedule. With index lists: one wave of blocks where that is nearly balanced, because
/// splitting costs writing and reading partials, and a prologue and epilogue each; of many rows
/// only the last ones are split. With a page table, the device distributes up to kShareTiles
/// requests (share_work.cuh). Where M blocks of 64 rows would leave SMs idle, smaller ones are
/// used. Where many rows list the same fp8 pages (shape.main, shape.extra), staging costs less than
/// converting each key for every row. workspace_bytes() is at most kLatentPartialBytes.
LatentCut cut_latent(const LatentShape& shape);

/// Bytes that suffice for schedule and workspace of any shape whose rows, requests, request_rows,
/// keys and pools are at most those of `most`, everything else being equal.
std::int64_t latent_workspace_bytes(const LatentShape& most);

/// Work lists over the work tiles, in device memory.
struct LatentSchedule {
  LatentCut cut;
  WorkBuffers list, tail;                  // of cut.all and cut.tail
  std::span<LatentSplitTile> split_tiles;  // where the device shares: input of the combine
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
/// Fills the schedule from the lengths on the device. Launches 1 kernel where the device shares,
/// else 2, plus one with a tail and one above 4096 work tiles. args: everything but q, out and lse.
/// Errors: lists that are too small for the cut; a failed launch.
Result<void> plan_latent(const AttendArgs& args, const LatentSchedule& schedule,
                         cudaStream_t stream,
                         std::source_location where = std::source_location::current());

/// LatentShape::fp8_pages of a call with these keys.
bool has_fp8_pages(const KeySource& s);

/// The pool that a source's lists point to; empty if it is not fp8.
LatentPool listed_pool(const KeySource& s);
/// Stages as many pages of shape's pools as fit kLatentPartialBytes, whether it pays or not. Stages
/// none unless work tiles are whole (not split), of 64 M rows, with index lists.
void stage_latent(const LatentShape& shape, LatentCut& cut);

/// Computes attention. All spans and views of args are on the device; execution is not used.
/// row_request: [rows], if index lists hold positions (then there is a page table too), else empty.
///
/// q bf16, out bf16, lse f32 or null. Layouts mla_bf16, mla_fp8, mla_fp8_block at 512 + 64, v4_fp8
/// and bf16 rows at 448 + 64; v_dim 512. Scales in fp8 pages must be from 2^-15 to 2^7. Or q e4m3
/// with q_scale on mla_fp8, rows and pages at multiples of 16 bytes: P is then rounded to e4m3, so
/// outputs are off by a few percent of sqrt(sum of p^2 v^2)
/// (bench/notes/native-fp8/05-accuracy.md).
///
/// If the cut stages pages and the lists point to more pages than fit, pages are read in place.
///
/// Errors: as check_latent_call() (latent_call.h); a workspace or lists of the schedule that are
/// too small; pools other than the ones that the cut stages; a failed launch. On an error nothing
/// was launched.
Result<void> attend_latent(const AttendArgs& args, std::span<const std::int32_t> row_request,
                           const LatentSchedule& schedule, std::span<std::byte> workspace,
                           cudaStream_t stream,
                           std::source_location where = std::source_location::current());

}  // namespace lathe::cuda
