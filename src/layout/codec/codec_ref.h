// The codecs element by element. codec_fast.h must give the same bits. codec.cc has checked the
// arguments.
#pragma once

#include "layout/codec/codec_plan.h"

namespace lathe {

void encode_reference(const EncodeJob& job);
void decode_reference(const DecodeJob& job);
RequantReport requantize_reference(const RequantJob& job);

/// Value of a stored e4m3 or e2m1 code: code_value * scale in f32, with a canonical NaN.
float scaled_value(float code_value, float scale);

}  // namespace lathe
