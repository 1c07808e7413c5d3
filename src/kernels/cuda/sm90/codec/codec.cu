// The launches of the kernels from slots.
#include "kernels/cuda/sm90/codec/codec_kernels.h"
#include "kernels/cuda/sm90/codec/decode.cuh"
#include "kernels/cuda/sm90/codec/move.cuh"
#include "kernels/cuda/sm90/codec/requantize.cuh"

namespace lathe::cuda {
namespace {

template <bool kWhole>
auto decode_kernel_of(const DecodeParams& p, DType dtype) {
  return visit_kinds(p.runs, [&](auto first, auto second) {
    return dtype == DType::bf16 ? decode_kernel<bf16, first, second, kWhole>
                                : decode_kernel<float, first, second, kWhole>;
  });
}

}  // namespace

cudaError_t launch_decode(const DecodeParams& p, DType dtype, cudaStream_t stream) {
  return put(p.whole ? decode_kernel_of<true>(p, dtype) : decode_kernel_of<false>(p, dtype), p,
             stream);
}

cudaError_t launch_requantize(const RequantParams& p, bool to_block, cudaStream_t stream) {
  return put(p.report != nullptr ? requantize_kernel_of<true>(p, to_block)
                                 : requantize_kernel_of<false>(p, to_block),
             p, stream);
}

cudaError_t launch_move(const MoveParams& p, cudaStream_t stream) {
  return put(move_kernel, p, stream);
}

}  // namespace lathe::cuda
