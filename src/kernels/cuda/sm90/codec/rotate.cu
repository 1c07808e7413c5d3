// The rotation's kernels and their launch.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/rotate.cuh"

namespace lathe::cuda {
namespace {

template <class In, bool kAligned>
auto kernel_to(DType out) {
  if (out == DType::e4m3) return rotate_kernel<In, e4m3, kAligned>;
  return out == DType::bf16 ? rotate_kernel<In, bf16, kAligned>
                            : rotate_kernel<In, float, kAligned>;
}

template <bool kAligned>
auto kernel_of(DType in, DType out) {
  return in == DType::bf16 ? kernel_to<bf16, kAligned>(out) : kernel_to<float, kAligned>(out);
}

}  // namespace

cudaError_t launch_rotate(const RotateParams& p, DType in, DType out, cudaStream_t stream) {
  const auto kernel = p.aligned() ? kernel_of<true>(in, out) : kernel_of<false>(in, out);
  const dim3 grid(grid_of(p.rows, p.block_rows),
                  static_cast<unsigned>((p.chunks + p.slice - 1) / p.slice));
  kernel<<<grid, kCodecThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
