#include "kernels/cuda/sm90/matmul/quantize.h"

#include <fmt/format.h>

#include "kernels/cuda/common/cuda_error.h"

namespace lathe::cuda {

Result<void> quantize_rows_on_device(const RowsView& x, const QuantizedRows& out, bool power_of_two,
                                     cudaStream_t stream) {
  const bool dtype = x.dtype == DType::f32 || x.dtype == DType::bf16;
  if (!dtype || x.cols % 4 != 0 || out.scale_stride < x.rows * out.copies) {
    return Error{
        ErrorCode::invalid_argument, "rows to quantize",
        "f32 or bf16, a multiple of 4 columns, room for the scales of all rows",
        fmt::format("{} x {} of {}, {} scales", x.rows, x.cols, name(x.dtype), out.scale_stride),
        ""};
  }
  if (x.rows == 0 || x.cols == 0) return {};
  const QuantizeParams p{.x = x.data,
                         .rows = x.rows,
                         .cols = x.cols,
                         .x_stride = x.row_stride,
                         .blocks = (x.cols + kQuantizeBlock - 1) / kQuantizeBlock,
                         .scale_stride = out.scale_stride,
                         .codes = out.codes,
                         .scales = out.scales,
                         .x_bf16 = x.dtype == DType::bf16,
                         .power_of_two = power_of_two,
                         .places = out.places,
                         .copies = out.copies,
                         .own = static_cast<std::int32_t>(out.own),
                         .weights = out.weights};
  return call_result(launch_quantize_rows(p, stream), "quantize_rows");
}

}  // namespace lathe::cuda
