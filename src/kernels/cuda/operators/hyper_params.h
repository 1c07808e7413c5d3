// Converts the hyper connections' operators to kernel parameters.
#pragma once

#include <cstdint>

#include "base/check.h"
#include "base/rows.h"
#include "kernels/cuda/common/device_rows.h"
#include "kernels/cuda/sm90/hyper/hyper.h"

namespace lathe::cuda {

// A check, not an error: the planner rejects models with other streams or widths.
inline void check_streams(std::int32_t streams, const RowsView& x, const RowsView& row) {
  const bool words = row.cols % kHyperWord == 0 && row.row_stride % kHyperWord == 0 &&
                     x.row_stride % kHyperWord == 0;
  LATHE_CHECK(streams == kHyperStreams && words, "four streams in words of 16 bytes");
}

// For HyperMix (all but its mix) and for HyperHead.
template <class Op>
HyperMixParams mix_params(const Op& op) {
  check_streams(op.streams, op.x, constant(op.out));
  return {.x = floats(op.x),
          .product = op.product.cols == 0 ? nullptr : floats(op.product),
          .base = op.base.data(),
          .scale = op.scale.data(),
          .out = floats(op.out),
          .x_stride = op.x.row_stride,
          .product_stride = op.product.row_stride,
          .out_stride = op.out.row_stride,
          .rows = op.x.rows,
          .n = op.out.cols,
          .columns = static_cast<std::int32_t>(op.product.cols),
          .eps = op.eps,
          .norm_eps = op.norm_eps};
}

}  // namespace lathe::cuda
