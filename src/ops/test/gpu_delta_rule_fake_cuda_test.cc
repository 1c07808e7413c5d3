// The CUDA backend's delta-rule layers, emulated.
#include "ops/test/gpu_delta_rule_checks.h"
