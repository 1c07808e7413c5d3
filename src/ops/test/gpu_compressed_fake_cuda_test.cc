// The CUDA backend's operators for models with compressed entries and several streams, emulated.
#include "ops/test/gpu_compress_checks.h"
#include "ops/test/gpu_hyper_checks.h"
