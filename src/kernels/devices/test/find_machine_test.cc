#include "kernels/devices/find_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

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

TEST(Machine, DescribedOnesHaveAsManyGpusAsAreAskedFor) {
  EXPECT_EQ(find_machine("sm90")->ranks, 1);
  EXPECT_EQ(find_machine("sm90", {4, ""})->ranks, 4);
  EXPECT_EQ(find_machine("sm90", {2, "8"})->ranks, 8);
  EXPECT_EQ(find_machine("h100", {2, ""})->model, "H100");
  EXPECT_LT(find_machine("h100")->memory_bytes, find_machine("h200")->memory_bytes);
  EXPECT_EQ(find_machine("h200")->link_bytes_per_second, 366e9);
  for (const char* gpus : {"0,1", "0", "-1", "x", "1,", ","}) {
    const auto refused = find_machine("sm90", {2, gpus});
    ASSERT_FALSE(refused) << gpus;
    EXPECT_EQ(refused.error().field, "--gpus");
  }
  EXPECT_EQ(find_machine("cpu", {2, "2"}).error().offered, "--device cpu");
}

TEST(Machine, GpusAreChosenByNumber) {
  const auto numbers = [](std::int32_t ranks, const char* gpus, std::int32_t count) {
    return *choose_gpus({ranks, gpus}, count);
  };
  using Numbers = std::vector<std::int32_t>;
  EXPECT_EQ(numbers(2, "", 8), (Numbers{0, 1}));
  EXPECT_EQ(numbers(4, "", 2), (Numbers{0, 1}));  // the plan says that two are too few
  EXPECT_EQ(numbers(2, "5,3", 8), (Numbers{5, 3}));
  EXPECT_EQ(numbers(1, "7", 8), (Numbers{7}));
  for (const auto& [gpus, offered] :
       {std::pair{"0,8", "8"}, {"1", "1"}, {"0,1,2", "3"}, {"0,0", "\"0,0\""}}) {
    const auto refused = choose_gpus({2, gpus}, 8);
    ASSERT_FALSE(refused) << gpus;
    EXPECT_EQ(refused.error().field, "--gpus");
    EXPECT_EQ(refused.error().offered, offered);
  }
  // Two GPUs without --tp would leave the second one idle.
  EXPECT_EQ(choose_gpus({1, "0,1"}, 8).error().message(), "--gpus: wanted 1 GPU for --tp 1, got 2");
}

// Two GPUs as they would be found.
std::vector<FoundGpu> two_gpus() {
  std::vector<FoundGpu> gpus(2);
  for (std::int32_t i = 0; i < 2; ++i) {
    gpus[static_cast<std::size_t>(i)] = {i, describe_machine(Device::sm90), 100 - i};
  }
  return gpus;
}

TEST(Machine, AlikeGpusAreOneMachine) {
  const auto machine = join_gpus(two_gpus(), true, false);
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->ranks, 2);
  EXPECT_TRUE(machine->peers);
  EXPECT_FALSE(machine->nccl);
  EXPECT_EQ(machine->free_bytes, (std::vector<std::int64_t>{100, 99}));
}

TEST(Machine, UnlikeGpusAreRefusedByName) {
  std::vector<FoundGpu> gpus = two_gpus();
  gpus[1].number = 3;
  gpus[1].machine.model = "NVIDIA H100 PCIe";
  const auto refused = join_gpus(gpus, true, true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().field, "--gpus");
  EXPECT_EQ(refused.error().offered, "0 H200 and 3 NVIDIA H100 PCIe");
}

TEST(Machine, UnknownNamesListTheKnownOnes) {
  const auto unknown = find_machine("sm42");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().wanted, "one of auto, cuda, ref, cpu, sm80, sm90, sm100, h100, h200");
}

}  // namespace
}  // namespace lathe
