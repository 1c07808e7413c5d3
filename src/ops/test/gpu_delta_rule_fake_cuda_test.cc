// The CUDA backend's delta-rule layers, emulated.
#include "ops/test/gpu_delta_rule_checks.h"

namespace lathe {
namespace {

// Emulated, 65536 tokens of a head would need an hour.
TEST(GpuDeltaRule, LongSequencesStayExact) { check_long_sequence(1024 * test_scale()); }

}  // namespace
}  // namespace lathe
