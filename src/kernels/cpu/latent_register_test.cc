#include "kernels/cpu/latent_register.h"

#include <gtest/gtest.h>

#include "kernels/cpu/latent_attend.h"

namespace lathe {
namespace {

TEST(LatentRegister, AKernelForEachProblemAndKind) {
  Registry registry;
  register_cpu_latent_kernels(registry);
  EXPECT_EQ(registry.kernels().size(), 9u);
  for (const Kernel& k : registry.kernels()) {
    EXPECT_TRUE(k.attend == cpu_attend_latent) << k.capability.name;
    EXPECT_TRUE(k.capability.devices.contains(Device::cpu));
  }
  const Kernel* native = registry.find("cpu.sparse_latent.native");
  ASSERT_NE(native, nullptr);
  EXPECT_EQ(native->capability.q_dtype(CacheLayout(LayoutKind::mla_fp8)), DType::e4m3);
  EXPECT_EQ(native->capability.arithmetic_on(CacheLayout(LayoutKind::mla_fp8)), Arithmetic::fp8);
  EXPECT_EQ(native->capability.q_dtype(CacheLayout(LayoutKind::mla_bf16)), DType::f32);
  const Kernel* gather = registry.find("cpu.window_compressed.gather");
  ASSERT_NE(gather, nullptr);
  EXPECT_TRUE(gather->capability.compact_rows);
  EXPECT_FALSE(gather->capability.two_sources);
}

}  // namespace
}  // namespace lathe
