// An RMS norm of a kernel's rows in the same launch, and codes of its result.
#pragma once

#include "kernels/cuda/common/device_rows.h"

namespace lathe::cuda {

/// Codes of a norm's bf16 result, as quantize_rows_on_device() makes them from it.
struct NormCodes {
  // [rows, cols], aligned to 4 bytes, cols a multiple of 128; null: none are made
  std::uint8_t* codes = nullptr;
  float* scales = nullptr;  // [cols / 128, scale_stride]
  std::int64_t scale_stride = 0;
  bool power_of_two = false;
};

struct NormAfter {
  const float* weight = nullptr;  // [cols]
  MutableDeviceRows h = {};       // [rows, cols] f32 or bf16 out; no data: no norm
  float eps = 0;
  NormCodes codes = {};
};

/// Most columns: a row is in shared memory meanwhile.
inline constexpr std::int64_t kNormAfterColumns = 8192;

}  // namespace lathe::cuda
