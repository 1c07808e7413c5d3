#include "kernels/cuda/operators/quantized_x.h"

#include "base/integers.h"
#include "base/rows.h"
#include "kernels/cuda/sm90/matmul/quantize.h"

namespace lathe::cuda {

bool takes_codes(MatmulPrecision precision, const RowsView& x, const WeightView& w) {
  return rounds_to_e4m3(precision, w.dtype) && x.dtype == DType::bf16 && w.cols % 16 == 0;
}

CodeArrays take_codes(std::int64_t rows, std::int64_t cols, Arena& tensors, const CodePlaces& to) {
  const std::int64_t placed = rows * to.copies;
  const std::int64_t all = to.in_order ? own_row(placed) + rows : placed, stride = round_up(all, 4);
  auto* const codes = tensors.take_array<std::uint8_t>(all * cols);
  return {codes, tensors.take_array<float>(ceil_div(cols, kQuantizeBlock) * stride), all, stride};
}

Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, const CodeArrays& arrays,
                            cudaStream_t stream, const CodePlaces& to) {
  const QuantizedRows out{.codes = arrays.codes,
                          .scales = arrays.scales,
                          .scale_stride = arrays.scale_stride,
                          .places = to.places,
                          .copies = to.copies,
                          .own = to.in_order ? own_row(x.rows * to.copies) : -1,
                          .weights = to.weights};
  const bool power_of_two = precision == MatmulPrecision::fp8_pow2;
  if (auto ok = quantize_rows_on_device(x, out, power_of_two, stream); !ok) return ok.error();
  return arrays.view(x.cols);
}

Result<QuantizedX> quantize(const RowsView& x, MatmulPrecision precision, Arena& tensors,
                            cudaStream_t stream) {
  return quantize(x, precision, take_codes(x.rows, x.cols, tensors, {}), stream, {});
}

QuantizedX rows_from(const QuantizedX& x, std::int64_t first) {
  return {rows_at(x.x, first, x.x.rows - first), x.scales + first, x.scale_stride};
}

}  // namespace lathe::cuda
