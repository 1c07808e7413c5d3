// The codecs with SIMD, dispatched at run time to the best target of the machine (Highway). Bit for
// bit equal to codec_ref.h for every input. Arguments have been checked by codec.cc.
#pragma once

#include "layout/codec/codec_plan.h"

namespace lathe {

void encode_fast(const EncodeJob& job);
void decode_fast(const DecodeJob& job);
RequantReport requantize_fast(const RequantJob& job);

/// Name of the SIMD target in use ("AVX3"), for reports.
const char* codec_simd_target();

}  // namespace lathe
