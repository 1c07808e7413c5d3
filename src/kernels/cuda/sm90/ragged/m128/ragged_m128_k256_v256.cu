// ragged_m128: instance of keys of 256 and values of 256 dims.
#include "kernels/cuda/sm90/ragged/m128/ragged_m128_launch.cuh"

template cudaError_t lathe::cuda::launch_ragged_m128<256, 256>(const RaggedParams&, cudaStream_t);
