#include "kernels/devices/find_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/devices/query_gpu.h"

namespace lathe {
namespace {

TEST(Machine, DescribedOnesHaveTheirLimits) {
  EXPECT_EQ(find_machine("sm90")->block_shared_bytes, 232448);
  EXPECT_EQ(find_machine("sm90")->processors, 132);
  EXPECT_EQ(find_machine("sm80")->block_shared_bytes, 166912);
  EXPECT_EQ(find_machine("sm100")->device, Device::sm100);
  EXPECT_EQ(find_machine("ref")->device, Device::ref);
}

TEST(Machine, TheHostIsQueried) {
  const auto cpu = find_machine("cpu");
  ASSERT_TRUE(cpu);
  EXPECT_GE(cpu->processors, 1);
  EXPECT_GT(cpu->memory_bytes, std::int64_t{1} << 28);
  EXPECT_EQ(cpu->block_shared_bytes, 0);
  // "auto" is the GPU if there is one, else the CPU.
  const auto best = find_machine("auto");
  ASSERT_TRUE(best);
  EXPECT_TRUE(best->device == Device::cpu || is_gpu(best->device));
}

TEST(Machine, CudaIsTheGpuOrADescribedOne) {
  const auto gpu = find_machine("cuda");
  ASSERT_TRUE(gpu);
  EXPECT_TRUE(is_gpu(gpu->device));
  EXPECT_GT(gpu->block_shared_bytes, 0);
  if (!query_gpu()) {
    EXPECT_EQ(*gpu, describe_machine(Device::sm90));
  }
}

TEST(Machine, UnknownNamesListTheKnownOnes) {
  const auto unknown = find_machine("sm42");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().wanted, "one of auto, cuda, ref, cpu, sm80, sm90, sm100");
}

}  // namespace
}  // namespace lathe
