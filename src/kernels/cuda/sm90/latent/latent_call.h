// Checks a latent call against latent_limits.h, with the caller's schedule or for
// attend_latent_on_device().
#pragma once

#include "attn/attend.h"
#include "base/result.h"

namespace lathe::cuda {

/// Checks everything but the number of list entries and what max_request_rows and max_kv_len bound.
/// Spans and views may point anywhere. Errors: unsupported dims, heads, layouts, dtypes or scales;
/// a window, or a second source, where the first one has a page table; addresses or strides that
/// are not multiples of 16 bytes; one source by page table and the other by index lists.
Result<void> check_latent_call(const AttendArgs& args);

}  // namespace lathe::cuda
