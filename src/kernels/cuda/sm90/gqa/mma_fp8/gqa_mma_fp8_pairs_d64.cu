// gqa_mma_fp8: instances of pairs of KV heads of 64 dims, 8, 16 and 32 M rows of each.
#include "kernels/cuda/sm90/gqa/mma_fp8/gqa_mma_fp8_launch.cuh"

template cudaError_t lathe::cuda::launch_gqa_mma_fp8<64, 2>(const GqaParams&, cudaStream_t);
