// Launches GEMMs of e4m3 weights by few bf16 tokens.
#include "kernels/cuda/sm90/matmul/few/few_codes.cuh"

#include "kernels/cuda/common/launch.h"

cudaError_t lathe::cuda::launch_few_codes(const FewCodesParams& p, const FewCodesInstance& instance,
                                          cudaStream_t stream) {
  if (const cudaError_t status = allow_shared<few_codes_kernel>(kFewShared);
      status != cudaSuccess) {
    return status;
  }
  return launch_kernel(few_codes_kernel,
                       {.grid = static_cast<unsigned>(instance.blocks),
                        .block = 32 * kFewCodesWarps,
                        .shared_bytes = instance.shared_bytes,
                        .early = true},
                       stream, p);
}
