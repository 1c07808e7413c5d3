#include "step/prefix_sizes.h"

#include <algorithm>

namespace lathe {

// Every M block of a group saves as much as another one, but the last, which may be smaller. So a
// step saves most if all its blocks are full, with or without such a rest.
PrefixSizes prefix_sizes(const PrefixSharing& sharing, std::int64_t rows, std::int64_t keys) {
  if (!sharing.on) return {};
  // blocks: of groups that have `grouped` of the rows.
  const auto pays = [&](std::int64_t grouped, std::int64_t blocks) {
    const std::int64_t reads = grouped * prefix_blocks(sharing, 1) - blocks;
    const std::int64_t cost =
        sharing.launch_ps + grouped * (keys * sharing.row_key_ps + sharing.row_ps);
    return clearly_more(reads * keys * sharing.key_ps, cost);
  };
  const std::int64_t block = std::max<std::int64_t>(1, kFewPrefixRows / sharing.row_heads);  // rows
  const std::int64_t full = rows / block * block;
  PrefixSizes out;
  out.few = block > 1 && (pays(full, full / block) || pays(rows, (rows + block - 1) / block));
  out.many = rows > block &&
             (pays(full, prefix_blocks(sharing, full)) || pays(rows, prefix_blocks(sharing, rows)));
  return out;
}

}  // namespace lathe
