// ragged_m128: instance of keys of 192 and values of 128 dims.
#include "kernels/cuda/sm90/ragged/m128/ragged_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_ragged_m128<192, 128>(const RaggedParams&, cudaStream_t);
