// Permutes 4-bit weights from the checkpoint's order to that of packed_weights.h, on the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace lathe::cuda {

struct PackCodes {
  std::byte* data = nullptr;  // in place; aligned to 16
  std::int64_t units = 0;     // of 32 columns; rows are whole units
  bool u4 = false;            // or e2m1
};
cudaError_t launch_pack_codes(const PackCodes& p, cudaStream_t stream);

/// Scales or zeros of `weights` matrices, one after the other.
struct PackScales {
  const std::byte* from = nullptr;  // [weights, rows, groups] elements of `bytes` bytes
  std::byte* to = nullptr;          // [weights, packed_groups().count()]
  std::int64_t weights = 1, rows = 0, groups = 0;
  std::int64_t cols = 0;
  std::int32_t size = 0;   // columns of a group
  std::int32_t bytes = 1;  // 1 or 2
};
cudaError_t launch_pack_scales(const PackScales& p, cudaStream_t stream);

}  // namespace lathe::cuda
