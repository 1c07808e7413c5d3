// Launches the kernels that read rows: encode, rope_write, index keys, and the ordering of slots.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/index_keys.cuh"
#include "kernels/cuda/sm90/codec/order.cuh"
#include "kernels/cuda/sm90/codec/put.h"

namespace lathe::cuda {

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  return put(encode_kernel_of(p, dtype, rope), p, stream,
             rope || p.order != nullptr ? 0 : stage_bytes_of(p, p.runs), true);
}

cudaError_t launch_order(const OrderParams& p, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(order_blocks(p.count));
  cudaError_t status = cudaMemsetAsync(p.totals, 0, kOrderParts * sizeof *p.totals, stream);
  if (status != cudaSuccess) return status;
  const LaunchShape shape{.grid = blocks, .block = kOrderThreads};
  status = launch_kernel(order_count_kernel, shape, stream, p);
  return status != cudaSuccess ? status : launch_kernel(order_list_kernel, shape, stream, p);
}

}  // namespace lathe::cuda
