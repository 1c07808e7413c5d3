// Launches the kernels that read pages: decode, requantize, move.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/move.cuh"
#include "kernels/cuda/sm90/codec/put.h"
#include "kernels/cuda/sm90/codec/requantize_tiles.cuh"

namespace lathe::cuda {

cudaError_t launch_decode(const DecodeParams& p, DType dtype, cudaStream_t stream) {
  return put(decode_kernel_of(p, dtype), p, stream);
}

cudaError_t launch_requantize(const RequantParams& p, bool to_block, cudaStream_t stream) {
  return put(requantize_kernel_of(p, to_block), p, stream, stage_bytes_of(p, p.dst_runs));
}

cudaError_t launch_move(const MoveParams& p, cudaStream_t stream) {
  return put(move_kernel, p, stream);
}

}  // namespace lathe::cuda
