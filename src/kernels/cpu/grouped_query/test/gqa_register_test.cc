// The capabilities of the CPU's grouped-query and ragged kernels.
#include "kernels/cpu/grouped_query/gqa_register.h"

#include <gtest/gtest.h>

#include "kernels/cpu/grouped_query/gqa_plan.h"
#include "kernels/cpu/ragged/ragged_register.h"
#include "kernels/cpu/ragged/ragged_task.h"

namespace lathe {
namespace {

TEST(GqaRegister, DeclaresItsKernels) {
  Registry registry;
  register_cpu_gqa_kernels(registry);
  register_cpu_ragged_kernels(registry);
  EXPECT_EQ(registry.kernels().size(), 5u);
  EXPECT_TRUE(registry.devices().contains(Device::cpu));
  for (const Kernel& kernel : registry.kernels()) EXPECT_NE(kernel.attend, nullptr);
  const Kernel* gather = registry.find("cpu.grouped_query.gather");
  ASSERT_NE(gather, nullptr);
  EXPECT_TRUE(gather->capability.compact_rows);
  EXPECT_TRUE(gather->capability.split_kv);
  EXPECT_EQ(gather->capability.split_bytes, kGqaPartBytes);
  const Kernel* ragged = registry.find("cpu.sparse_latent.ragged");
  ASSERT_NE(ragged, nullptr);
  EXPECT_TRUE(ragged->capability.context_within_top_k);
  EXPECT_EQ(ragged->capability.worker_rows, kRaggedTaskRows);
}

}  // namespace
}  // namespace lathe
