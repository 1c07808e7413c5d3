// The codecs element by element: the definition that codec_fast.h is held to, bit for bit.
// Arguments have been checked by codec.cc.
#pragma once

#include "layout/codec/codec_plan.h"

namespace lathe {

void encode_reference(const EncodeJob& job);
void decode_reference(const DecodeJob& job);
RequantReport requantize_reference(const RequantJob& job);

/// Value of a stored e4m3 or e2m1 code under `scale`: one f32 product, its NaN canonical.
float scaled_value(float code_value, float scale);

}  // namespace lathe
