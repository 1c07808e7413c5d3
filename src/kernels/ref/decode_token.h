// One cached token in double precision: what its bytes mean, straight from the layout's parts.
//
// Written apart from the codecs in src/layout on purpose. It is part of the oracle that they are
// compared with, so it shares nothing with them but the layout value and the number formats.
#pragma once

#include <span>

#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Decodes the token in `slot`, which must be inside the pool, into row [layout.row_elems()]: nope
/// then rope, or key, or all heads' keys then all heads' values.
///
/// Exact but for the product with a scale that is not a power of two (one rounding to double).
/// key_scale and value_scale apply where the policy is per_tensor, value_scale to the `value` part
/// only; a latent row is key and value at once and takes key_scale. Formats: docs/layouts.md; a
/// ue8m0 byte b is 2^(b-127) and 255 is NaN; the low nibble of an e2m1 byte is the even element.
void decode_token(const ConstPoolView& pool, Slot slot, float key_scale, float value_scale,
                  std::span<double> row);

}  // namespace lathe
