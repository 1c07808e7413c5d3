// What models of compressed entries and several streams ask of the CUDA backend, emulated.
#include "ops/gpu_compress_checks.h"
#include "ops/gpu_hyper_checks.h"
