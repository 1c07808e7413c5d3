// Where a part of a cache row is in memory.
#pragma once

#include "kernels/cuda/sm90/codec/codec_params.h"

namespace lathe::cuda {

/// Token i of a page has the part at start + i * step bytes.
struct StoredPart {
  std::int64_t start = 0;
  std::uint32_t step = 0;
  float inverse = 1;  // e4m3 with a tensor scale stores value * inverse

  static StoredPart of(const RunParams& run) { return {run.start, run.step, run.inverse}; }
};

}  // namespace lathe::cuda
