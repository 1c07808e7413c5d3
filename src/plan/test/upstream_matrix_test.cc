// Which combinations other serving systems support for DeepSeek V3.2 on CUDA, reproduced by
// planning with the capabilities of their kernels.
#include <gtest/gtest.h>

#include <array>

#include "plan/explain.h"
#include "plan/planner.h"
#include "plan/test/described_test_kernels.h"

namespace lathe {
namespace {

struct Row {
  const char* dtype;
  const char* prefill;
  // Columns: flashmla_sparse, flashmla_kv, fa3, tilelang, trtllm. "slow": converts the whole pool;
  // "arch": no machine has both kernels.
  std::array<const char*, 5> cells;
};

constexpr std::array<const char*, 5> kDecode = {"flashmla_sparse", "flashmla_kv", "fa3", "tilelang",
                                                "trtllm"};
constexpr std::array kTable = {
    Row{"bf16", "flashmla_sparse", {"ok", "slow", "ok", "ok", "ok"}},
    Row{"bf16", "flashmla_kv", {"slow", "slow", "slow", "slow", "slow"}},
    Row{"bf16", "fa3", {"ok", "slow", "ok", "ok", "arch"}},
    Row{"bf16", "tilelang", {"ok", "slow", "ok", "ok", "ok"}},
    Row{"bf16", "trtllm", {"ok", "slow", "arch", "ok", "ok"}},
    Row{"fp8_e4m3", "flashmla_sparse", {"no", "ok", "no", "no", "no"}},
    Row{"fp8_e4m3", "flashmla_kv", {"no", "ok", "no", "no", "no"}},
    Row{"fp8_e4m3", "flashmla_sparse_q8", {"no", "ok", "no", "no", "arch"}},
    Row{"fp8_e4m3", "trtllm", {"no", "no", "no", "no", "ok"}},
};

PlanResult plan_on(Device device, const Registry& kernels, const char* dtype, const char* prefill,
                   const char* decode) {
  PlanRequest request;
  request.kv_dtype = dtype;
  request.prefill = prefill;
  request.decode = decode;
  return make_plan(deepseek_v32_problem(), describe_machine(device), request, kernels);
}

bool converts_whole_pool(const Plan& plan) {
  for (const PhasePlan& p : plan.phases) {
    for (const Route& r : p.routes) {
      if (r.adapter && r.adapter->whole_pool) return true;
    }
  }
  return false;
}

TEST(UpstreamMatrix, EveryCell) {
  const Registry kernels = testing::upstream_kernels();
  for (const Row& row : kTable) {
    for (std::size_t i = 0; i < kDecode.size(); ++i) {
      SCOPED_TRACE(std::string(row.dtype) + " " + row.prefill + " x " + kDecode[i]);
      const std::string want = row.cells[i];
      std::string got = "no";
      bool device_reason_everywhere = true;
      for (Device device : {Device::sm90, Device::sm100}) {
        const PlanResult plan = plan_on(device, kernels, row.dtype, row.prefill, kDecode[i]);
        if (plan) {
          got = converts_whole_pool(*plan) ? "slow" : "ok";
          continue;
        }
        // A refusal names both sides and a change that helps.
        const std::string text = explain(plan.error());
        EXPECT_NE(text.find(std::string("prefill ") + row.prefill), std::string::npos) << text;
        EXPECT_NE(text.find(std::string("decode ") + kDecode[i]), std::string::npos) << text;
        EXPECT_NE(text.find("  try --"), std::string::npos) << text;
        EXPECT_FALSE(plan.error().reasons.empty());
        bool device_reason = false;
        for (const Reason& r : plan.error().reasons) device_reason |= r.rule == Rule::device;
        device_reason_everywhere &= device_reason;
      }
      if (got == "no" && device_reason_everywhere) got = "arch";
      // No common machine and no common layout: counts as "no".
      EXPECT_TRUE(got == want || (want == "no" && got == "arch")) << got;
    }
  }
}

// flashmla_auto chooses the better of the two FlashMLA kernels.
TEST(UpstreamMatrix, AutoRow) {
  const Registry kernels = testing::upstream_kernels();
  for (const char* dtype : {"bf16", "fp8_e4m3"}) {
    for (const char* decode : {"flashmla_kv", "trtllm"}) {
      bool either = false;
      for (const char* prefill : {"flashmla_sparse", "flashmla_kv"}) {
        either |= plan_on(Device::sm100, kernels, dtype, prefill, decode).ok();
      }
      EXPECT_EQ(either, std::string(dtype) == "bf16" || std::string(decode) == "flashmla_kv");
    }
  }
  // With prefill auto, the planner finds a prefill kernel for every decode kernel that has one.
  EXPECT_TRUE(plan_on(Device::sm90, kernels, "fp8_e4m3", "flashmla_auto", "flashmla_kv"));
  EXPECT_TRUE(plan_on(Device::sm100, kernels, "fp8_e4m3", "flashmla_auto", "trtllm"));
}

// A pair that those systems cannot run becomes legal with one more conversion, and the planner
// chooses the layout for it.
TEST(UpstreamMatrix, GatherDecodeMakesTheMissingPairLegal) {
  Registry kernels = testing::upstream_kernels();
  add_adapters(kernels);
  const PlanResult plan = plan_on(Device::sm100, kernels, "fp8_e4m3", "flashmla_sparse", "trtllm");
  ASSERT_TRUE(plan) << explain(plan.error());
  EXPECT_EQ(plan->main().layout, CacheLayout(LayoutKind::mla_fp8));
  EXPECT_EQ(plan->main().page_size, 64);
  const Route& extend = plan->phase(Phase::extend).routes.back();
  ASSERT_TRUE(extend.adapter);
  EXPECT_EQ(extend.adapter->in_bytes, 576);
  EXPECT_EQ(extend.adapter->out_bytes, 1152);
  EXPECT_EQ(extend.unit, KeyUnit::ragged_row);
  EXPECT_EQ(extend.q_dtype, DType::bf16);
  const Route& decode = plan->phase(Phase::decode).routes.back();
  EXPECT_FALSE(decode.adapter);
  EXPECT_EQ(decode.unit, KeyUnit::slot);
  EXPECT_EQ(decode.q_dtype, DType::e4m3);
  EXPECT_EQ(plan->table_multiple, 2);  // 128 tokens in pages of 64
  // bf16 pools are read in place, without a copy.
  const PlanResult bf16 = plan_on(Device::sm100, kernels, "bf16", "flashmla_sparse", "trtllm");
  ASSERT_TRUE(bf16);
  EXPECT_FALSE(bf16->phase(Phase::extend).routes.back().adapter);
  EXPECT_EQ(bf16->phase(Phase::extend).routes.back().unit, KeyUnit::slot);
}

TEST(UpstreamMatrix, RequantisedPagesMakeInplaceOverFp8Legal) {
  Registry kernels = testing::upstream_kernels();
  Adapter requantise;
  requantise.name = "requantise";
  requantise.from = {LayoutKind::mla_fp8};
  requantise.to = LayoutKind::mla_fp8_block;
  requantise.to_compact_rows = false;
  kernels.add(requantise);
  const PlanResult plan = plan_on(Device::sm100, kernels, "fp8_e4m3", "flashmla_kv", "trtllm");
  ASSERT_TRUE(plan) << explain(plan.error());
  EXPECT_EQ(plan->main().layout.kind(), LayoutKind::mla_fp8);
  EXPECT_EQ(plan->phase(Phase::extend).routes.back().adapter->out_bytes, 656);
}

// If one backend flag is given, the planner chooses the other side to fit it. No default can
// contradict the flag.
TEST(UpstreamMatrix, SingleSidedRequest) {
  const Registry kernels = testing::upstream_kernels();
  const PlanResult plan = plan_on(Device::sm100, kernels, "fp8_e4m3", "flashmla_kv", "auto");
  ASSERT_TRUE(plan) << explain(plan.error());
  EXPECT_EQ(plan->main().layout.kind(), LayoutKind::mla_fp8_block);
  EXPECT_EQ(plan->phase(Phase::decode).routes.back().kernel, "flashmla_kv");
  const PlanResult other = plan_on(Device::sm100, kernels, "fp8_e4m3", "auto", "trtllm");
  ASSERT_TRUE(other);
  EXPECT_EQ(other->main().layout.kind(), LayoutKind::mla_fp8);
}

}  // namespace
}  // namespace lathe
