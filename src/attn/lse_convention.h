// How a caller wants the LSE of rows. Kernels give natural logs, and -inf for a row without keys.
#pragma once

#include "base/rows_view.h"

namespace lathe {

struct LseConvention {
  bool base_2 = false;          // FlashInfer's
  bool empty_plus_inf = false;  // FlashMLA's: +inf for a row without keys
};

/// Rewrites what a kernel gave. lse: [rows, heads] f64 or f32 of the host, or null.
void convert_lse(LseConvention convention, const MutableRowsView& lse);

}  // namespace lathe
