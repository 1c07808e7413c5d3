// The CUDA backend's delta-rule layers, on a GPU.
#include "kernels/cuda/common/test/gpu_test_util.h"
#include "ops/test/gpu_delta_rule_checks.h"

namespace lathe {
namespace {

TEST(GpuDeltaRule, LongSequencesStayExact) { check_long_sequence(65536); }

}  // namespace
}  // namespace lathe

int main(int argc, char** argv) { return lathe::cuda::gpu_test_main(argc, argv); }
