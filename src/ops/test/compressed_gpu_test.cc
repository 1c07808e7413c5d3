// The CUDA backend's operators for models with compressed entries and several streams, on a GPU.
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "ops/test/gpu_compress_checks.h"
#include "ops/test/gpu_hyper_checks.h"
#include "ops/test/gpu_stream_checks.h"

std::int64_t lathe::ops_test::launches_so_far() { return -1; }

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
