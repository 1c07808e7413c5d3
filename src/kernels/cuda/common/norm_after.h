// An RMS norm of a kernel's rows in the same launch.
#pragma once

#include "kernels/cuda/common/device_rows.h"

namespace lathe::cuda {

struct NormAfter {
  const float* weight = nullptr;  // [cols]
  MutableDeviceRows h = {};       // [rows, cols] f32 or bf16 out; no data: no norm
  float eps = 0;
};

/// Most columns: a row is in shared memory meanwhile.
inline constexpr std::int64_t kNormAfterColumns = 8192;

}  // namespace lathe::cuda
