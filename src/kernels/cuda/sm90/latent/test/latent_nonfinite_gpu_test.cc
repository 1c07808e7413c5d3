// Tests latent attention on keys that are not finite on a GPU.
#include "kernels/cuda/sm90/latent/test/latent_nonfinite_checks.h"

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
