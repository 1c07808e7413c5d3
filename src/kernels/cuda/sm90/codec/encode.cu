// The launches of the kernels from rows.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/index_keys.cuh"

namespace lathe::cuda {

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  return put(encode_kernel_of(p, dtype, rope), p, stream, rope ? 0 : stage_bytes_of(p, p.runs));
}

}  // namespace lathe::cuda
