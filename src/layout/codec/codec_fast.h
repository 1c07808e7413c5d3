// The codecs with SIMD, for the best target of the machine, chosen at run time (Highway). They give
// codec_ref.h's bits for every input. codec.cc has checked the arguments.
#pragma once

#include "layout/codec/codec_plan.h"

namespace lathe {

void encode_fast(const EncodeJob& job);
void decode_fast(const DecodeJob& job);
RequantReport requantize_fast(const RequantJob& job);

/// Name of the SIMD target in use ("AVX3"), for reports.
const char* codec_simd_target();

}  // namespace lathe
