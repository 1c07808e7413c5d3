// Launches the plain f32 GEMM for each weight format.
#include "kernels/cuda/sm90/matmul/plain/plain_gemm.cuh"

#include "kernels/cuda/common/launch.h"

namespace lathe::cuda {

PlainWeight plain_weight(const WeightView& w) {
  return {.data = w.data,
          .scales = w.scales,
          .dtype = w.dtype,
          .rows = w.rows,
          .cols = w.cols,
          .scale_rows = w.scale_rows,
          .groups = w.groups,
          .columns = w.columns};
}

PlainWeight plain_weight(const WeightStack& w) {
  PlainWeight out = plain_weight(w.at(0));
  if (w.count() < 2) return out;
  out.data_stride = w.data[1] - w.data[0];
  if (w.scales[0] != nullptr) out.scales_stride = w.scales[1] - w.scales[0];
  return out;
}

cudaError_t launch_plain_gemm(const PlainGemm& p, cudaStream_t stream) {
  if (p.rows == 0 || p.w.rows == 0 || p.count == 0) return cudaSuccess;
  const dim3 grid(blocks_for(p.w.rows, kPlainTileN), blocks_for(p.rows, kPlainTileM),
                  static_cast<unsigned>(p.count));
  return launch_kernel(plain_gemm_kernel, {.grid = grid, .block = kPlainThreads, .early = true},
                       stream, p);
}

}  // namespace lathe::cuda
