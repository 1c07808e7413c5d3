// What models of compressed entries and several streams ask of the CUDA backend, emulated.
#include "ops/test/gpu_compress_checks.h"
#include "ops/test/gpu_hyper_checks.h"
