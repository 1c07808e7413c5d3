// Quantizes activations for GEMMs with e4m3 weights, where the precision asks for it.
#pragma once

#include <cuda_runtime_api.h>

#include "base/arena.h"
#include "base/result.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/linear.h"

namespace lathe::cuda {

/// Whether x is to be quantized: the precision asks for it, and matmul_on_device() supports this x
/// and w as codes.
bool takes_codes(MatmulPrecision precision, const RowsView& x, const WeightView& w);

/// x as e4m3 codes, with scales laid out as MatmulCall::x_scales.
struct QuantizedX {
  RowsView x;
  const float* scales = nullptr;
  std::int64_t scale_stride = 0;
};

/// Makes the codes the x of a MatmulCall or GroupedMatmulCall.
template <class Call>
void set_codes(const QuantizedX& codes, Call& call) {
  call.x = codes.x;
  call.x_scales = codes.scales;
  call.x_scale_stride = codes.scale_stride;
}

/// Where each row goes.
struct CodePlaces {
  const std::int32_t* places = nullptr;  // not null: to `copies` rows (QuantizedRows::places)
  std::int32_t copies = 1;
  const float* weights = nullptr;  // of the copies (QuantizedRows::weights), or null
  bool in_order = false;           // also to row own_row(rows * copies) + r of the result
};

/// Memory for the codes of rows.
struct CodeArrays {
  std::uint8_t* codes = nullptr;  // [rows, cols]
  float* scales = nullptr;        // [blocks of 128 columns, scale_stride]
  std::int64_t rows = 0, scale_stride = 0;

  QuantizedX view(std::int64_t cols) const {
    const auto* const data = reinterpret_cast<const std::byte*>(codes);
    return {{data, DType::e4m3, rows, cols, cols}, scales, scale_stride};
  }
};
CodeArrays take_codes(std::int64_t rows, std::int64_t cols, Arena& tensors, const CodePlaces& to);

/// Quantizes x. Errors: a failed launch.
Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, const CodeArrays& arrays,
                            cudaStream_t stream, const CodePlaces& to);
/// The same, into memory of `tensors`.
Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, Arena& tensors,
                            cudaStream_t stream);

/// The first row after `placed` rows for rows in order: scales from there on are whole words.
constexpr std::int64_t own_row(std::int64_t placed) { return (placed + 3) / 4 * 4; }

/// Rows of `x` from `first` on, a multiple of 4.
QuantizedX rows_from(const QuantizedX& x, std::int64_t first);

}  // namespace lathe::cuda
