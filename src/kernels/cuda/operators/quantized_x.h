// Quantizes what products with e4m3 weights read, where the precision asks for it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// Whether x of a product is quantized: it and the weight are such that matmul_on_device() takes
/// the codes.
bool takes_codes(MatmulPrecision precision, const RowsView& x, const WeightView& w);

/// x as e4m3 codes, with scales as MatmulCall::x_scales.
struct QuantizedX {
  RowsView x;
  const float* scales = nullptr;
  std::int64_t scale_stride = 0;
};

/// places: not null, then row r of x becomes `copies` rows (QuantizedRows::places). The result lies
/// in `tensors`. Errors: a launch that fails.
Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, Arena& tensors,
                            cudaStream_t stream, const std::int32_t* places = nullptr,
                            std::int32_t copies = 1);

}  // namespace lathe::cuda
