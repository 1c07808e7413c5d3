// Checks a call of latent attention (latent_limits.h), with the caller's schedule or in
// attend_latent_on_device().
#pragma once

#include "attn/attend.h"
#include "base/result.h"

namespace lathe::cuda {

/// All but how many entries lists have and what max_request_rows and max_kv_len bound. Spans and
/// views may point anywhere. Errors: dims, heads, layouts, dtypes or scales that the kernels don't
/// take; a window, or a second source, with a page table of the first; addresses or strides off 16
/// bytes; sources of two forms.
Result<void> check_latent_call(const AttendArgs& args);

}  // namespace lathe::cuda
