// m64: instance of mla_fp8_block without RoPE.
#include "kernels/cuda/sm90/latent/latent_kernels_512.h"
#include "kernels/cuda/sm90/latent/load/row_format_512.cuh"
#include "kernels/cuda/sm90/latent/m64/m64_fp8_launch.cuh"

cudaError_t lathe::cuda::launch_m64_mla_fp8_block_512(const LatentParams& p, cudaStream_t stream) {
  return launch_m64_fp8<Fp8BlockFormat512>(p, stream);
}
