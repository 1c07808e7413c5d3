// Operators over rows of activations, f32 or bf16, with a kernel each. A row's bits depend on that
// row alone. ops/ checks the parameters; each call launches one kernel, or none if there are no
// rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/common/activation_terms.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/common/norm_after.h"

namespace lathe::cuda {

struct EmbedParams {
  const std::byte* table = nullptr;  // [vocab, cols] f32, f16 or bf16
  DType dtype = DType::f32;
  const std::int32_t* tokens = nullptr;  // [rows]
  MutableDeviceRows out = {};
  std::int64_t rows = 0, cols = 0;
  std::int64_t first = 0, vocab = 0;  // the table's tokens: first .. first + vocab - 1
  float scale = 1;
};

struct GatherRowsParams {
  DeviceRows x = {};
  const std::int32_t* of = nullptr;  // [rows] row of x
  MutableDeviceRows out = {};
  std::int64_t rows = 0, cols = 0;
  std::int64_t words = 0;  // 16-byte words per row, or 0 if rows cannot be copied by words; launch
                           // sets it
  bool once = false;       // L2 does not hold out until it is read; launch sets it
};

/// Rows up to which short_norm_kernel is used. With more, wide_norm_kernel's small blocks hide each
/// other's latency.
inline constexpr std::int64_t kShortNormRows = 132;

struct NormParams {
  DeviceRows x = {};
  const float* weight = nullptr;  // [cols]; null: 1
  const float* bias = nullptr;    // [cols] of a layer norm; null: RMS norm
  MutableDeviceRows out = {};
  std::int64_t rows = 0, cols = 0;  // cols: per head
  std::int64_t heads = 1;
  float eps = 0;
  bool add = false;
  bool words = false;    // x, weight and out allow accesses of four columns; launch sets it
  NormCodes codes = {};  // precondition: norm_takes_codes()
};

struct ActivationParams {
  ActivationTerms activation = {};
  DeviceRows gate = {};
  DeviceRows up = {};  // no data: gate interleaves both
  MutableDeviceRows out = {};
  std::int64_t rows = 0, cols = 0;  // of out
  int each = 1;                     // columns per thread; launch sets it
};

struct GateRowsParams {
  MutableDeviceRows x = {};
  DeviceRows gate = {};
  std::int64_t rows = 0, cols = 0;        // cols: per head
  std::int64_t heads = 1, gate_head = 0;  // elements from a head's gate to the next
  bool one = false;                       // gate for the whole head
};

struct CopyRowsParams {
  DeviceRows x = {};
  MutableDeviceRows out = {};
  std::int64_t rows = 0, cols = 0;                   // cols: per head
  std::int64_t heads = 1, x_head = 0, out_head = 0;  // elements from a head to the next
  bool add = false;
  int each = 1;  // columns per thread; launch sets it
};

/// x *= times * factor; with a limit, x = limit * tanh(x / limit).
struct ScaleRowsParams {
  float* x = nullptr;
  std::int64_t stride = 0;
  const float* factor = nullptr;  // null: 1
  float times = 1;
  float limit = 0;  // 0: none
  std::int64_t rows = 0, cols = 0;
};

struct NonFiniteParams {
  DeviceRows x = {};
  const std::int32_t* of = nullptr;  // [rows] index in `first`; null: the row's own
  std::int32_t* first = nullptr;
  std::int64_t rows = 0, cols = 0;
  std::int32_t layer = 0;
};

cudaError_t launch_embed(const EmbedParams& p, cudaStream_t stream);
cudaError_t launch_gather_rows(const GatherRowsParams& p, cudaStream_t stream);
cudaError_t launch_norm(const NormParams& p, cudaStream_t stream);
/// Whether launch_norm() can make codes of the result.
bool norm_takes_codes(const NormParams& p);
cudaError_t launch_gated_activation(const ActivationParams& p, cudaStream_t stream);
cudaError_t launch_gate_rows(const GateRowsParams& p, cudaStream_t stream);
cudaError_t launch_copy_rows(const CopyRowsParams& p, cudaStream_t stream);
cudaError_t launch_scale_rows(const ScaleRowsParams& p, cudaStream_t stream);
cudaError_t launch_find_non_finite(const NonFiniteParams& p, cudaStream_t stream);

}  // namespace lathe::cuda
