// The launches of the kernels from rows.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/index_keys.cuh"
#include "kernels/cuda/sm90/codec/order.cuh"

namespace lathe::cuda {

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  return put(encode_kernel_of(p, dtype, rope), p, stream,
             rope || p.order != nullptr ? 0 : stage_bytes_of(p, p.runs));
}

cudaError_t launch_order(const OrderParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(order_blocks(p.count));
  cudaError_t status = cudaMemsetAsync(p.totals, 0, kOrderParts * sizeof *p.totals, stream);
  if (status != cudaSuccess) return status;
  order_count_kernel<<<blocks, kOrderThreads, 0, stream>>>(p);
  status = cudaGetLastError();
  if (status != cudaSuccess) return status;
  order_list_kernel<<<blocks, kOrderThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

}  // namespace lathe::cuda
