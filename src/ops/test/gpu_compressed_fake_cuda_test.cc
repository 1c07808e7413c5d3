// The CUDA backend's operators for models with compressed entries and several streams, emulated.
#include "kernels/cuda/fake/fake_cuda.h"
#include "ops/test/gpu_compress_checks.h"
#include "ops/test/gpu_hyper_checks.h"
#include "ops/test/gpu_stream_checks.h"

std::int64_t lathe::ops_test::launches_so_far() { return cuda::fake::counts().launches; }
