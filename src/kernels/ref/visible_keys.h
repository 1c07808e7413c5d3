// Which keys a query row sees, and their rows in double. This file defines what a KeySource
// (attn/attend.h) means: holes, lengths, causality and windows are decided here.
#pragma once

#include <cstdint>
#include <vector>

#include "attn/attend.h"

namespace lathe {

/// A query row: its number, its request and its position.
struct RowPlace {
  std::int64_t row = 0;  // in q
  std::int64_t request = 0;
  std::int64_t position = 0;  // in its request: L - n + j
};

/// One place per row of q, in order. Precondition: the arguments have been checked.
std::vector<RowPlace> row_places(const AttendArgs& args);

/// Keys of a source that the row at `place` sees: Slot values if the source has a pool, otherwise
/// RaggedRow values.
/// - With a page table: positions first_key to place.position in order, except on pages that are
///   holes or outside the pool. first_key: AttentionProblem::first_key() of the row, 0 or more.
/// - With an index list: its entries in order, repeated ones included, except holes, entries
///   outside the pool or buffer, and entries past the row's length.
std::vector<std::int32_t> visible_keys(const KeySource& source, const RowPlace& place,
                                       std::int64_t first_key);

/// Appends the decoded rows of `keys` to `rows`, `width` doubles each. Reads the bytes of these
/// keys only.
void append_key_rows(const KeySource& source, const std::vector<std::int32_t>& keys,
                     std::int32_t width, std::vector<double>& rows);

}  // namespace lathe
