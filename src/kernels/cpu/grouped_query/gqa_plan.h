// The work of one grouped-query call: blocks of query rows that share their keys, cut along the
// keys and the kv heads into tasks. No allocation: blocks are computed from the arguments.
#pragma once

#include <cstdint>

#include "attn/attend.h"

namespace lathe {

/// In batch_invariant mode partial states are folded at multiples of this many keys, whichever
/// thread computes them, so that splits between threads change no bit.
inline constexpr std::int64_t kGqaFoldKeys = 1024;

/// Partial results of all tasks take no more than this; beyond it the keys of a block stay
/// together. The capability declares it.
inline constexpr std::int64_t kGqaPartBytes = std::int64_t{64} << 20;

/// Rows of one request that meet the same tiles of keys. With an index list a block is one row and
/// key i is entry i of its list; otherwise key i is position i.
struct GqaBlock {
  std::int32_t request = 0;
  std::int32_t row = 0;  // in q
  std::int32_t rows = 0;
  std::int32_t parts = 1;       // tasks along the keys
  std::int64_t position = 0;    // of the first row; unused with an index list
  std::int64_t first_key = 0;   // first that any row sees
  std::int64_t end_key = 0;     // one past the last
  std::int64_t part_keys = 0;   // keys of a part, a multiple of kTile
  std::int64_t first_part = 0;  // number of parts in the blocks before that have several
  std::int64_t first_task = 0;  // tasks of the blocks before, per slice of kv heads
};

struct GqaPlan {
  std::int64_t blocks = 0;
  std::int64_t tasks = 0;        // per slice
  std::int64_t parts = 0;        // in blocks that have several
  std::int32_t block_rows = 1;   // most rows of a block
  std::int32_t slices = 1;       // kv heads are cut into this many
  std::int32_t slice_heads = 1;  // most kv heads of a slice
};

/// Blocks of the call; it writes at most blocks_bound(args) to `blocks`. threads >= 1.
std::int64_t gqa_blocks_bound(const AttendArgs& args);
GqaPlan plan_gqa(const AttendArgs& args, std::int64_t threads, GqaBlock* blocks);

}  // namespace lathe
