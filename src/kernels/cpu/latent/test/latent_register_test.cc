// The capabilities of the CPU's latent kernels.
#include "kernels/cpu/latent/latent_register.h"

#include <gtest/gtest.h>

#include "kernels/cpu/latent/latent_attend.h"
#include "kernels/cpu/latent/latent_plan.h"
#include "kernels/cpu/latent/test/latent_test_util.h"

namespace lathe {
namespace {

TEST(LatentRegister, AKernelForEachProblemAndKind) {
  Registry registry;
  register_cpu_latent_kernels(registry);
  EXPECT_EQ(registry.kernels().size(), 9u);
  for (const Kernel& k : registry.kernels()) {
    EXPECT_TRUE(k.attend == cpu_attend_latent) << k.capability.name;
    EXPECT_TRUE(k.capability.devices.contains(Device::cpu));
    EXPECT_TRUE(k.capability.split_kv);
    EXPECT_EQ(k.capability.split_bytes, kLatentPartBytes);
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

// One row of 128 heads over 400,000 keys has 393 x 2 parts with states of 130 KiB: 100 MiB. Three
// such requests exceed the ceiling, so their tasks fold the parts as they go.
TEST(LatentRegister, PartsStayBelowTheDeclaredCeiling) {
  latent_test::Scene s(CacheLayout(LayoutKind::mla_bf16), 64, 128, {{1, 1}, {1, 1}, {1, 1}});
  std::vector<std::int32_t> lens = {400000, 400000, 400000};
  ThreadPool threads(16);
  AttendArgs args = s.args;
  args.execution = {&threads, nullptr, true};
  for (const std::size_t requests : {1u, 3u}) {
    const auto rows = static_cast<std::int64_t>(requests);
    args.kv_lens = std::span(lens).first(requests);
    args.q_indptr = s.args.q_indptr.first(requests + 1);
    args.q.rows = rows;
    const LatentPlan plan(args);
    EXPECT_EQ(plan.parts_apart, requests == 1);
    EXPECT_LE(plan.workers_at, kLatentPartBytes);
    EXPECT_EQ(plan.parts, requests == 1 ? 2 * 393 : 0);
  }
}

}  // namespace
}  // namespace lathe
