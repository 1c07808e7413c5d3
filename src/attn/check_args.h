// Checks AttendArgs for all devices, before a kernel reads a key or writes output.
//
// Values that mean "no key" are legal: holes, indices and page ids outside the pool, zero rows and
// zero lengths. An argument that would be silently ignored is an error: a scale for a format
// without scales, a source or a sink that the problem does not have.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Latent attention: dense_latent, sparse_latent, window_compressed. `main` needs a page table wide
/// enough for kv_lens, or index lists; `extra`, if the problem has two sources, index lists.
Result<void> check_latent_args(const AttendArgs& args);

/// check_latent_args() for arrays in GPU memory, which it does not read: only counts, shapes,
/// dtypes and scales.
Result<void> check_latent_shapes(const AttendArgs& args);

/// Grouped-query attention.
Result<void> check_gqa_args(const AttendArgs& args);

/// check_gqa_args() without reading arrays.
Result<void> check_gqa_shapes(const AttendArgs& args);

/// Kind `ragged`: dense_latent or sparse_latent with a page table. A sparse problem may have at
/// most top_k keys per request. The expansion weights must have the problem's dims.
Result<void> check_ragged_args(const AttendArgs& args);

/// check_ragged_args() without reading arrays, and without w_uk and w_uv.
Result<void> check_ragged_shapes(const AttendArgs& args);

}  // namespace lathe
