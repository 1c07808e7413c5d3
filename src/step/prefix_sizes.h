// When groups of requests that share prefixes pay, by the costs that a plan has of them.
#pragma once

#include <cstdint>

#include "attn/shared_prefixes.h"

namespace lathe {

/// Costs are estimates, so savings must exceed them by a fifth.
inline bool clearly_more(std::int64_t saved, std::int64_t cost) { return saved > cost + cost / 5; }

/// M blocks of `rows` query rows: each reads the keys.
inline std::int64_t prefix_blocks(const PrefixSharing& sharing, std::int64_t rows) {
  return (rows * sharing.row_heads + kFewPrefixRows - 1) / kFewPrefixRows;
}

/// Which sizes the largest group of a step can have, next to PrefixSize::none.
struct PrefixSizes {
  bool few = false, many = false;
  int count() const { return 1 + (few ? 1 : 0) + (many ? 1 : 0); }
};
/// Of a step with `rows` query rows, each a request's only one, that have at most `keys` keys in
/// common.
PrefixSizes prefix_sizes(const PrefixSharing& sharing, std::int64_t rows, std::int64_t keys);

}  // namespace lathe
