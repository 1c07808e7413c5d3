// The CUDA backend's delta-rule layers, emulated.
#include "ops/test/gpu_delta_rule_checks.h"

namespace lathe {
namespace {

// LATHE_TEST_SCALE=64 is 65536 tokens, which take minutes.
TEST(GpuDeltaRule, LongSequencesStayExact) { check_long_sequence(1024 * test_scale()); }

}  // namespace
}  // namespace lathe
