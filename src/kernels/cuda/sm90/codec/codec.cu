// The codecs' kernels and their launches.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/encode.cuh"
#include "kernels/cuda/sm90/codec/move.cuh"
#include "kernels/cuda/sm90/codec/requantize.cuh"

namespace lathe::cuda {
namespace {

template <class Params>
cudaError_t put(void (*kernel)(Params), const Params& p, cudaStream_t stream) {
  kernel<<<grid_of(p.count, p.block_rows), kCodecThreads, 0, stream>>>(p);
  return cudaGetLastError();
}

template <bool kAligned>
cudaError_t put_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  if (dtype == DType::bf16) {
    return put(rope ? encode_kernel<bf16, true, kAligned> : encode_kernel<bf16, false, kAligned>, p,
               stream);
  }
  return put(rope ? encode_kernel<float, true, kAligned> : encode_kernel<float, false, kAligned>, p,
             stream);
}

template <bool kAligned>
cudaError_t put_decode(const DecodeParams& p, DType dtype, cudaStream_t stream) {
  return put(dtype == DType::bf16 ? decode_kernel<bf16, kAligned> : decode_kernel<float, kAligned>,
             p, stream);
}

template <bool kAligned>
cudaError_t put_requantize(const RequantParams& p, bool to_block, cudaStream_t stream) {
  return put(to_block ? requantize_kernel<true, kAligned> : requantize_kernel<false, kAligned>, p,
             stream);
}

}  // namespace

cudaError_t launch_encode(const EncodeParams& p, DType dtype, bool rope, cudaStream_t stream) {
  return p.aligned() ? put_encode<true>(p, dtype, rope, stream)
                     : put_encode<false>(p, dtype, rope, stream);
}

cudaError_t launch_decode(const DecodeParams& p, DType dtype, cudaStream_t stream) {
  return p.aligned() ? put_decode<true>(p, dtype, stream) : put_decode<false>(p, dtype, stream);
}

cudaError_t launch_requantize(const RequantParams& p, bool to_block, cudaStream_t stream) {
  return p.aligned() ? put_requantize<true>(p, to_block, stream)
                     : put_requantize<false>(p, to_block, stream);
}

cudaError_t launch_move(const MoveParams& p, cudaStream_t stream) {
  if (p.unit == 16) return put(move_kernel<uint4>, p, stream);
  return put(p.unit == 4 ? move_kernel<std::uint32_t> : move_kernel<std::uint8_t>, p, stream);
}

}  // namespace lathe::cuda
