#include "kernels/cuda/operators/quantized_x.h"

#include "base/integers.h"
#include "base/rows.h"
#include "kernels/cuda/sm90/matmul/quantize.h"

namespace lathe::cuda {

bool takes_codes(MatmulPrecision precision, const RowsView& x, const WeightView& w) {
  return rounds_to_e4m3(precision, w.dtype) && x.dtype == DType::bf16 && w.cols % 16 == 0;
}

Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, Arena& tensors,
                            cudaStream_t stream, const CodePlaces& to) {
  const std::int64_t placed = x.rows * to.copies, own = to.in_order ? own_row(placed) : -1;
  const std::int64_t rows = to.in_order ? own + x.rows : placed, stride = round_up(rows, 4);
  const std::int64_t blocks = (x.cols + kQuantizeBlock - 1) / kQuantizeBlock;
  auto* const codes = tensors.take_array<std::uint8_t>(rows * x.cols);
  auto* const scales = tensors.take_array<float>(blocks * stride);
  const QuantizedRows out{codes, scales, stride, to.places, to.copies, own, to.weights};
  const bool power_of_two = precision == MatmulPrecision::fp8_pow2;
  if (auto ok = quantize_rows_on_device(x, out, power_of_two, stream); !ok) return ok.error();
  const RowsView view{reinterpret_cast<const std::byte*>(codes), DType::e4m3, rows, x.cols, x.cols};
  return QuantizedX{view, scales, stride};
}

QuantizedX rows_from(const QuantizedX& x, std::int64_t first) {
  return {rows_at(x.x, first, x.x.rows - first), x.scales + first, x.scale_stride};
}

}  // namespace lathe::cuda
