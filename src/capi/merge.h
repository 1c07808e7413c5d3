// Merges partial attention results in the caller's arrays. The C and the Python interface share it.
#pragma once

#include "base/result.h"
#include "capi/array_ref.h"

namespace lathe {

/// Attention over some of the keys: out [rows, heads, v_dim] float32, bfloat16, float16 or uint16
/// (bits of bfloat16), and lse [rows, heads] float32, natural logarithms. The strides of rows and
/// heads are free.
struct PartialRef {
  const ArrayRef& out;
  const ArrayRef& lse;
};

/// Merges two partials over disjoint keys into `to`, by merge_states() in double. `to` may be one
/// of the inputs. A partial with LSE -inf has no key, and its out is not read. Errors, with nothing
/// written: a wrong dtype, shape or stride; outputs that share memory with another array.
Result<void> merge_partials(PartialRef a, PartialRef b, PartialRef to);

}  // namespace lathe
