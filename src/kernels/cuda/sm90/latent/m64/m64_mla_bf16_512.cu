// m64: instance of bf16 rows of 512, where the key is the value.
#include "kernels/cuda/sm90/latent/m64/m64_bf16_launch.cuh"

cudaError_t lathe::cuda::launch_m64_mla_bf16_512(const LatentParams& p, cudaStream_t stream) {
  return launch_m64<Bf16RowFormat512>(p, stream);
}
