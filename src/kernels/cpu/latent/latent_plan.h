// Cuts a call of latent attention into tasks, and lays out their memory.
//
// A work tile is a set of M rows (query row, head) that see the same keys: some rows of a request
// that share its page table, or one row with its own list; with many heads, only some of its heads.
// A work tile's keys are split into parts at multiples counted from its request's first key, so a
// row's parts do not depend on other rows. Either one task runs all parts of a work tile and folds
// them as it goes, or each part is a task of its own and the parts are folded afterwards. The order
// is the same, so the bits are equal.
#pragma once

#include <cstdint>
#include <span>

#include "attn/attend.h"
#include "kernels/cpu/tile/tile_types.h"

namespace lathe {

/// Most bytes of states of parts that are separate tasks. If a call would need more, its tasks run
/// all parts of a work tile, at the cost of balance. The capability declares it.
inline constexpr std::int64_t kLatentPartBytes = std::int64_t{256} << 20;

/// With batch_invariant, states are folded at multiples of this many keys, and before the first
/// multiple also at the cuts of LatentCuts.
inline constexpr std::int64_t kLatentFoldKeys = 1024;

/// The keys at which parts begin: multiples of `even`, or if `even` is 0, fixed keys: 0, 256, 512
/// and the multiples of kLatentFoldKeys. A fixed part is never longer than all parts before it
/// together. So rows of most lengths can be divided evenly over threads: long parts go first, short
/// ones fill up.
struct LatentCuts {
  std::int64_t even = 0;

  std::int64_t begin(std::int64_t part) const;
  /// The part that contains a key.
  std::int64_t part_of(std::int64_t key) const;
};

/// A run of a request's keys. The call's pool and page table have only these keys: page table entry
/// 0 is the page of key `first`. The caller keeps the states of all rows from run to run.
struct LatentRun {
  std::int64_t first = 0;        // a multiple of kLatentFoldKeys
  std::int64_t keys = 0;         // a multiple of kLatentFoldKeys, unless the run is the last
  float* out = nullptr;          // [rows * heads, out_stride]
  SoftState* softmax = nullptr;  // [rows * heads]
  bool last = false;             // after this run, write out and lse
};

struct LatentWorkTile {
  std::int64_t request = 0;
  std::int64_t row = 0;  // first row of q
  std::int32_t rows = 0;
  std::int32_t head = 0;  // first head
  std::int32_t heads = 0;
  std::int64_t position = 0;    // position of the first row in its request
  std::int64_t keys = 0;        // an upper bound
  std::int64_t first_part = 0;  // index in the buffer of parts, if parts are tasks
  std::int32_t parts = 0;

  std::int64_t m_rows() const { return std::int64_t{rows} * heads; }
};

struct LatentTask {
  std::int32_t work_tile = 0;
  std::int32_t part = 0;  // -1: all parts
  std::int64_t cost = 0;
};

/// Sizes of a call. Computing them needs no buffer.
struct LatentPlan {
  std::int64_t width = 0;       // padded floats of a q row
  std::int64_t key_stride = 0;  // floats
  std::int64_t out_stride = 0;  // padded floats of an output row
  std::int64_t work_tiles = 0;
  std::int64_t tasks = 0;
  std::int64_t m_rows = 0;   // M rows of the largest work tile
  LatentCuts cuts;           // at multiples of the tile
  bool parts_apart = false;  // each part is a task of its own
  std::int64_t parts = 0;    // number of states in the buffer of parts
  std::int64_t workers = 1;

  // The lists: work tiles, and from this byte on tasks.
  std::int64_t tasks_at = 0;
  std::int64_t list_bytes = 0;
  // The scratch: [parts] states, and from this byte on [workers] x worker_bytes.
  std::int64_t workers_at = 0;
  std::int64_t worker_bytes = 0;
  std::int64_t work_bytes = 0;

  const LatentRun* run = nullptr;  // null: all keys

  explicit LatentPlan(const AttendArgs& args, const LatentRun* run = nullptr);
  /// Number of parts of the first `keys` keys of a work tile, at least one.
  std::int64_t parts_of(std::int64_t keys) const;
  /// The first key of a part in its work tile.
  std::int64_t part_begin(std::int64_t part) const;
  /// Floats of a state of `m_rows` M rows, a multiple of kLatentPad.
  std::int64_t state_floats() const;
  /// Writes the work tiles and the tasks, longest first, into `list_bytes` bytes.
  void fill(const AttendArgs& args, std::byte* lists) const;
  std::span<const LatentWorkTile> work_tile_list(const std::byte* lists) const;
  std::span<const LatentTask> task_list(const std::byte* lists) const;
};

/// Attends. Precondition: the arguments have been checked; with a run, they are one request by page
/// table (shares_keys()).
void latent_attend_run(const AttendArgs& args, const LatentRun* run);

}  // namespace lathe
