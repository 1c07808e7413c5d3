// Validation of AttendArgs, the same for all devices, before a kernel reads a key or writes an
// output.
//
// An Error names the argument, what was wanted and what was offered. What is legal and means "no
// key" is not an error: holes, indices and page ids outside the pool, zero rows, zero lengths. What
// would be silently ignored is one: a scale for a format that carries none, a source that the
// problem doesn't have, a sink that the problem doesn't announce.
#pragma once

#include "attn/attend.h"

namespace lathe {

/// Latent attention: dense_latent, sparse_latent, window_compressed. `main` by page table
/// wide enough for kv_lens, or by index list; `extra` by index list where there are two sources.
Result<void> check_latent_args(const AttendArgs& args);

/// The same without a look at what an array holds, for arrays of a GPU: counts, shapes, dtypes and
/// scales.
Result<void> check_latent_shapes(const AttendArgs& args);

/// Grouped queries: grouped_query.
Result<void> check_gqa_args(const AttendArgs& args);

/// The same without a look at what an array holds.
Result<void> check_gqa_shapes(const AttendArgs& args);

/// Kind `ragged`: dense_latent or sparse_latent by page table, no request of a sparse
/// problem with more than top_k keys, expansion weights of the problem's dims.
Result<void> check_ragged_args(const AttendArgs& args);

/// The same without a look at what an array holds, and without w_uk and w_uv.
Result<void> check_ragged_shapes(const AttendArgs& args);

}  // namespace lathe
