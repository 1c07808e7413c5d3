// The launches of the kernels from rows.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/encode.cuh"

namespace lathe::cuda {

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  if (p.whole) {
    return put(
        rope ? encode_kernel_of<true, true>(p, dtype) : encode_kernel_of<false, true>(p, dtype), p,
        stream);
  }
  return put(
      rope ? encode_kernel_of<true, false>(p, dtype) : encode_kernel_of<false, false>(p, dtype), p,
      stream);
}

}  // namespace lathe::cuda
