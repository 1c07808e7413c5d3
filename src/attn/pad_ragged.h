// Ragged query rows to a dense block per request and back, for kernels that want equal numbers of
// rows (verify and draft_extend with uneven requests).
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/rows_view.h"

namespace lathe {

/// dense[r * max_len + i] = ragged[q_indptr[r] + i] for i < q_indptr[r + 1] - q_indptr[r], and zero
/// bytes past it. ragged: [>= q_indptr.back(), width]; dense: [requests * max_len, width] of the
/// same dtype; q_indptr: [requests + 1]. Errors, with nothing written: views that contradict each
/// other, an indptr that decreases or exceeds the rows, a request with more than max_len rows.
Result<void> pad_ragged(const RowsView& ragged, std::span<const std::int32_t> q_indptr,
                        std::int64_t max_len, const MutableRowsView& dense);

/// The way back. Rows of `ragged` that belong to no request (those from q_indptr.back() on, the
/// padding of a captured batch) become zero. Errors: as pad_ragged().
Result<void> unpad_ragged(const RowsView& dense, std::span<const std::int32_t> q_indptr,
                          std::int64_t max_len, const MutableRowsView& ragged);

/// The errors above that counts alone tell, for implementations whose indptr lies elsewhere.
Result<void> check_pad_counts(const RowsView& ragged, std::span<const std::int32_t> q_indptr,
                              std::int64_t max_len, const RowsView& dense);

}  // namespace lathe
