// Tests latent attention on keys that are not finite without a GPU: whole calls, emulated.
#include "kernels/cuda/sm90/latent/test/latent_nonfinite_checks.h"
