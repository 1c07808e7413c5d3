// Decodes one cached token to double precision, directly from the layout's parts.
//
// Deliberately independent of the codecs in src/layout: it is part of the oracle that they are
// compared with, so it shares only the layout value and the number formats with them.
#pragma once

#include <span>

#include "layout/pages/index_units.h"
#include "layout/pages/pool_view.h"

namespace lathe {

/// Decodes the token in `slot`, which must be inside the pool, into row [layout.row_elems()]: nope
/// then rope, or key, or all heads' keys then all heads' values.
///
/// Exact, except that the product with a scale that is not a power of two is rounded to double.
/// With policy per_tensor, value_scale multiplies the `value` part and key_scale everything else; a
/// latent row is key and value at once and has key_scale. Formats: docs/layouts.md. A ue8m0 byte b
/// is 2^(b-127), and 255 is NaN; the low nibble of an e2m1 byte is the even element.
void decode_token(const ConstPoolView& pool, Slot slot, float key_scale, float value_scale,
                  std::span<double> row);

}  // namespace lathe
