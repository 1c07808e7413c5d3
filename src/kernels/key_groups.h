// Lists of keys of which several share an index key (SelectKeys::tokens_per_key).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/operators.h"

namespace lathe {

/// Fills op.slots from each row's selected index keys: all tokens of each key's group, then the
/// row's own tokens that have no key yet. keys: [rows, k] slots of the main pool in groups, by
/// position, then -1. A page has whole groups.
inline void list_tokens(const SelectKeys& op, std::span<const std::int32_t> keys) {
  const StepView& step = *op.step;
  const std::int32_t group = op.tokens_per_key;
  const auto rows = static_cast<std::size_t>(step.rows), k = static_cast<std::size_t>(op.k);
  const std::size_t width = rows == 0 ? 0 : op.slots.size() / rows;
  for (std::size_t t = 0; t < rows; ++t) {
    const std::span out = op.slots.subspan(t * width, width);
    std::size_t n = 0;
    for (const std::int32_t key : keys.subspan(t * k, k)) {
      for (std::int32_t i = 0; key >= 0 && i < group; ++i) out[n++] = key * group + i;
    }
    const std::int32_t begun = step.row_lens[t] % group;
    for (std::int32_t i = begun; i > 0; --i) out[n++] = step.out_slots[t].value - i + 1;
    std::ranges::fill(out.subspan(n), -1);
  }
}

}  // namespace lathe
