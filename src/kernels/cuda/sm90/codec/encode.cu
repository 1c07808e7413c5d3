// The launches of the kernels from rows.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/encode.cuh"

namespace lathe::cuda {
namespace {

template <bool kRope, bool kWhole>
auto kernel_of(const EncodeParams& p, DType dtype) {
  return visit_kinds(p.runs, [&](auto first, auto second) {
    return dtype == DType::bf16 ? encode_kernel<bf16, first, second, kRope, kWhole>
                                : encode_kernel<float, first, second, kRope, kWhole>;
  });
}

}  // namespace

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  if (p.whole) {
    return put(rope ? kernel_of<true, true>(p, dtype) : kernel_of<false, true>(p, dtype), p,
               stream);
  }
  return put(rope ? kernel_of<true, false>(p, dtype) : kernel_of<false, false>(p, dtype), p,
             stream);
}

}  // namespace lathe::cuda
