// Cuts a grouped-query call into tasks: blocks of query rows that share keys, split along the keys
// and into slices of KV heads. Nothing is allocated; blocks are computed from the arguments.
#pragma once

#include <cstdint>

#include "attn/attend.h"

namespace lathe {

/// With batch_invariant, partial states are folded at multiples of this many keys, so that splits
/// between threads change no bit.
inline constexpr std::int64_t kGqaFoldKeys = 1024;

/// Most bytes of partial results of all tasks; a call that would need more does not split the keys.
/// The capability declares it.
inline constexpr std::int64_t kGqaPartBytes = std::int64_t{64} << 20;

/// Rows of one request that share tiles of keys. With an index list a block is one row, and key i
/// is entry i of its list; otherwise key i is position i.
struct GqaBlock {
  std::int32_t request = 0;
  std::int32_t row = 0;  // first row of q
  std::int32_t rows = 0;
  std::int32_t parts = 1;       // tasks along the keys
  std::int64_t position = 0;    // position of the first row; unused with an index list
  std::int64_t first_key = 0;   // first key that any row sees
  std::int64_t end_key = 0;     // one past the last
  std::int64_t part_keys = 0;   // keys per part, a multiple of kTile
  std::int64_t first_part = 0;  // parts in earlier blocks, counting only blocks with several
  std::int64_t first_task = 0;  // tasks in earlier blocks, per slice of KV heads
};

struct GqaPlan {
  std::int64_t blocks = 0;
  std::int64_t tasks = 0;        // per slice
  std::int64_t parts = 0;        // in blocks with several parts
  std::int32_t block_rows = 1;   // most rows of a block
  std::int32_t slices = 1;       // slices of KV heads
  std::int32_t slice_heads = 1;  // most KV heads of a slice
};

/// Plans the call. Writes its blocks, at most gqa_blocks_bound(args), to `blocks`. threads >= 1.
std::int64_t gqa_blocks_bound(const AttendArgs& args);
GqaPlan plan_gqa(const AttendArgs& args, std::int64_t threads, GqaBlock* blocks);

}  // namespace lathe
