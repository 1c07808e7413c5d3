// Plans of several ranks: shares, exchanges, floors, memory, and what is refused with a number of
// ranks that works. Expected figures are computed by hand from published sizes, and measured ones
// are two H200's.
#include "model/memory/plan_ranks.h"

#include <fmt/format.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "kernels/devices/all.h"
#include "model/config/split_sizes.h"
#include "model/memory/fit_model.h"
#include "model/test/published_configs.h"
#include "plan/explain.h"
#include "plan/plan_json.h"
#include "plan/plan_request_json.h"

namespace lathe {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Machine h200(std::int32_t ranks) { return with_ranks(describe_machine(Device::sm90), ranks); }

// Eight small requests, so that weights decide what fits.
PlanRequest request_of(std::int32_t tp) {
  PlanRequest request;
  request.tp = tp;
  request.context_length = 8192;
  request.chunked_prefill_size = 2048;
  return request;
}

ModelPlanResult planned(const ModelConfig& config, const Machine& machine,
                        const PlanRequest& request) {
  return fit_model(config, std::nullopt, machine, request, model_kernels(machine.device));
}

// The refusal of a plan: what it suggests gives a plan.
Refusal refused(const ModelConfig& config, const Machine& machine, const PlanRequest& request) {
  const auto plan = planned(config, machine, request);
  EXPECT_FALSE(plan.ok());
  if (plan) return {};
  for (const std::string& way : plan.error().suggestions) {
    if (!way.starts_with("--tp ")) continue;
    const auto changed = with_flags(request, way);
    EXPECT_TRUE(changed && planned(config, machine, *changed).ok()) << way;
  }
  return plan.error();
}

std::string last_of(const Refusal& r) { return r.suggestions.empty() ? "" : r.suggestions.back(); }

TEST(PlanRanks, A10PrintsSharesExchangesAndFloors) {
  const ModelConfig config = published("deepseek-v4-flash");
  PlanRequest request = request_of(2);
  request.page_size = 256;  // smaller pages pad more
  const auto plan = planned(config, h200(2), request);
  ASSERT_TRUE(plan.ok()) << explain(plan.error());
  const std::string text = explain(*plan);
  EXPECT_THAT(text, HasSubstr("ranks     2 × H200, NVLink 366 GB/s    heads 32 of 64 · experts 256 "
                              "at width 1,024 of 2,048 · shared expert 1,024 of 2,048 · "
                              "vocabulary 64,640\n"));
  EXPECT_THAT(text,
              HasSubstr("weights   78.7 GB a rank (replicated 1.3)   cache 3,899 B a token on "
                        "every rank\n"));
  EXPECT_THAT(
      text, HasSubstr("exchange  peer, 2 a layer, 8,192 B a row and peer; push to 256 rows, "
                      "each rank pulls all rows beyond; 86 a step, and 2 for embedding and logits: "
                      "at least 0.16 ms at "
                      "1 row, 0.3 at 64\n"));
  EXPECT_THAT(text, HasSubstr("floor     a decode step at 4,096 tokens, memory + exchanges: 1.5 + "
                              "0.2 ms at 1 row, 15.0 + 0.3 ms at 64 rows, 19.3 + 0.6 ms at 256 "
                              "rows\n"));
  EXPECT_EQ(plan->groups.front().plan.problem.heads, 32);
  const auto json = to_json(*plan);
  EXPECT_EQ(json["ranks"]["tp"], 2);
  EXPECT_EQ(json["ranks"]["exchange"]["kind"], "peer");
  EXPECT_EQ(json["ranks"]["exchange"]["row_bytes"], 8192);
  EXPECT_EQ(json["ranks"]["expert_width"]["of_rank"], 1024);
  EXPECT_EQ(json["ranks"]["floors"].size(), 3u);
}

TEST(PlanRanks, A10OneRankIsPlannedAsWithoutRanks) {
  const ModelConfig config = published("qwen3-32b");
  const auto alone = planned(config, describe_machine(Device::sm90), request_of(1));
  const auto one_of_two = planned(config, h200(2), request_of(1));
  ASSERT_TRUE(alone.ok());
  ASSERT_TRUE(one_of_two.ok());
  EXPECT_EQ(*alone, *one_of_two);
  EXPECT_EQ(alone->budget(BudgetKind::exchange), nullptr);
  EXPECT_EQ(explain(*alone).find("exchange"), std::string::npos);
  EXPECT_FALSE(to_json(*alone).contains("ranks"));
}

// Milliseconds of memory at 4.2 TB/s and of exchanges, at 1, 64 and 256 rows with 4096 tokens.
TEST(PlanRanks, A10FloorsOfPublishedModels) {
  struct Case {
    const char* name;
    std::int32_t tp;
    std::array<double, 3> memory, exchange;
  };
  for (const Case& c : {Case{"deepseek-v3.2", 8, {1.6, 19.6, 27.4}, {0.4, 1.2, 2.8}},
                        Case{"deepseek-v4-flash", 4, {0.9, 7.7, 10.2}, {0.2, 0.6, 1.7}},
                        Case{"glm-5-fp8", 8, {1.8, 22.0, 31.6}, {0.5, 1.4, 3.2}},
                        Case{"qwen3-235b-fp8", 2, {2.8, 33.6, 52.0}, {0.3, 0.6, 1.4}},
                        Case{"qwen3-235b-fp8", 4, {1.4, 16.8, 26.0}, {0.5, 1.2, 2.5}},
                        Case{"llama-3.1-70b", 2, {16.7, 26.8, 57.5}, {0.3, 0.8, 2.2}},
                        Case{"gpt-oss-120b", 2, {0.6, 7.9, 12.4}, {0.1, 0.2, 0.4}}}) {
    const ModelConfig config = published(c.name);
    PlanRequest request = request_of(c.tp);
    if (config.is_mla()) request.layout = "mla_fp8_block";
    const auto plan = planned(config, h200(c.tp), request);
    ASSERT_TRUE(plan.ok()) << c.name << explain(plan.error());
    ASSERT_EQ(plan->ranks.floors.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const RankFloor& f = plan->ranks.floors[i];
      EXPECT_NEAR(1e3 * f.memory_seconds, c.memory[i], 0.06 + 0.06 * c.memory[i])
          << c.name << ", " << f.rows;
      EXPECT_NEAR(1e3 * f.exchange_seconds, c.exchange[i], 0.1 + 0.1 * c.exchange[i])
          << c.name << ", " << f.rows;
    }
  }
}

// As layers/decoder_layer.cc: where outputs are normed or mixed into streams, no rank keeps sums.
TEST(PlanRanks, SaysWhetherRanksSumAShareOrPull) {
  for (const auto& [name, tp, beyond] :
       {std::tuple{"qwen3-235b-fp8", 2, "push to 128 rows, each rank sums a share beyond"},
        {"qwen3-235b-fp8", 4, "push to 32 rows, each rank sums a share beyond"},
        {"deepseek-v4-flash", 4, "push to 256 rows, each rank pulls all rows beyond"}}) {
    const auto plan = planned(published(name), h200(tp), request_of(tp));
    ASSERT_TRUE(plan.ok()) << name;
    EXPECT_THAT(explain(*plan), HasSubstr(beyond)) << name;
  }
  ModelConfig normed = published("qwen3-32b");
  normed.norms.attention_out = "post_attention_layernorm";
  EXPECT_FALSE(plan_ranks(normed, h200(2), request_of(2))->exchange.divided);
}

// matrix_part() widens what a rank cuts of columns in GPTQ's order to f32.
TEST(PlanRanks, CountsOrderedColumnsThatRanksCutAsWidened) {
  ModelConfig config = published("qwen3-32b");
  config.quantization = Quantization::int4;
  config.int4_group = 128;
  const Machine cpu = describe_machine(Device::cpu);
  const std::int64_t plain = plan_ranks(config, cpu, request_of(2))->weight_bytes;
  config.int4_order = true;
  const AttentionProblem& p = config.groups.front().problem;
  const std::int64_t out = std::int64_t{p.heads} * p.v_head_dim;
  const std::int64_t cut = std::int64_t{config.layers} * config.hidden * (out + config.ffn) / 2;
  EXPECT_EQ(plan_ranks(config, cpu, request_of(2))->weight_bytes - plain,
            4 * cut - (cut / 2 + 2 * cut / 128));
}

// Computed from the distribution of choices without a formula.
TEST(PlanRanks, ImbalanceOfExpertsByNumber) {
  struct Case {
    std::int64_t experts, top_k;
    std::int32_t groups;
    std::array<double, 6> at;  // 1, 8, 32, 64, 128, 256 rows
  };
  constexpr std::array<std::int64_t, 6> kRows = {1, 8, 32, 64, 128, 256};
  for (const Case& c : {Case{256, 8, 2, {1.24, 1.10, 1.04, 1.02, 1.01, 1.00}},
                        Case{256, 8, 8, {2.47, 1.48, 1.18, 1.09, 1.02, 1.00}},
                        Case{256, 6, 2, {1.30, 1.10, 1.05, 1.03, 1.01, 1.00}},
                        Case{256, 6, 8, {2.99, 1.55, 1.24, 1.13, 1.05, 1.00}},
                        Case{128, 4, 2, {1.38, 1.13, 1.06, 1.03, 1.01, 1.00}},
                        Case{128, 4, 8, {3.34, 1.72, 1.26, 1.13, 1.02, 1.00}}}) {
    for (std::size_t i = 0; i < kRows.size(); ++i) {
      EXPECT_NEAR(number_imbalance(c.experts, c.top_k, c.groups, kRows[i]) / c.at[i], 1, 0.13)
          << c.experts << " choose " << c.top_k << ", " << c.groups << " groups, " << kRows[i];
    }
  }
}

std::vector<std::string> order_of(const std::string& name, std::int32_t ranks, std::int64_t rows) {
  std::vector<std::string> out;
  for (const ExpertSplit& s : expert_splits(split_model(published(name)), ranks, rows)) {
    out.push_back(s.text());
  }
  return out;
}

// 12 blocks of 128 on 8 ranks are uneven (1.33), so half the width among four is cheaper, but for
// single rows, where half the experts are uneven, too.
TEST(PlanRanks, ExpertCandidatesAreInOrderOfBytesRead) {
  EXPECT_EQ(order_of("qwen3-235b-fp8", 8, 256).front(), "4x2");
  EXPECT_EQ(order_of("qwen3-235b-fp8", 8, 1),
            (std::vector<std::string>{"4x2", "8x1", "2x4", "1x8"}));
  EXPECT_EQ(order_of("deepseek-v3.2", 8, 1),
            (std::vector<std::string>{"8x1", "4x2", "2x4", "1x8"}));
  EXPECT_EQ(order_of("deepseek-v3.2", 8, 256).front(), "8x1");
  EXPECT_EQ(order_of("gpt-oss-120b", 8, 1).front(), "8x1");
}

TEST(PlanRanks, TheUsersExpertSplitIsFollowed) {
  const ModelConfig config = published("qwen3-235b-fp8");
  const auto split = [&](auto change) {
    PlanRequest request = request_of(8);
    change(request);
    const auto plan = planned(config, h200(8), request);
    EXPECT_TRUE(plan.ok());
    return plan ? std::pair(plan->ranks.parallel.expert_width, plan->ranks.parallel.expert_number)
                : std::pair(0, 0);
  };
  EXPECT_EQ(split([](PlanRequest&) {}), std::pair(4, 2));
  EXPECT_EQ(split([](PlanRequest& r) { r.expert_split = "width"; }), std::pair(8, 1));
  EXPECT_EQ(split([](PlanRequest& r) { r.expert_split = "number"; }), std::pair(1, 8));
  EXPECT_EQ(split([](PlanRequest& r) { r.expert_split = "2x4"; }), std::pair(2, 4));
  EXPECT_EQ(split([](PlanRequest& r) { r.expert_parallel = true; }), std::pair(1, 8));
  EXPECT_EQ(split([](PlanRequest& r) { r.ep_size = 4; }), std::pair(2, 4));
  PlanRequest wrong = request_of(8);
  wrong.expert_split = "3x3";
  EXPECT_THAT(explain(refused(config, h200(8), wrong)),
              HasSubstr("wanted auto, width, number or WxE with W x E = 8   offered \"3x3\""));
}

TEST(PlanRanks, Case1TooFewGpus) {
  const Refusal r = refused(published("qwen3-32b"), h200(2), request_of(4));
  EXPECT_EQ(r.reasons.at(0).rule, Rule::ranks);
  EXPECT_THAT(explain(r), HasSubstr("wanted 4 H200s   offered 2 found"));
  EXPECT_EQ(last_of(r), "--tp 2");
}

TEST(PlanRanks, Case2WithoutPeerAccessTheExchangeIsNccls) {
  Machine machine = h200(2);
  machine.peers = false;
  const ModelConfig config = published("qwen3-32b");
  const auto plan = planned(config, machine, request_of(2));
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->ranks.exchange.kind, ExchangeKind::nccl);
  // 128 exchanges of 7.6 us and, at 64 rows, of 655,360 B at 50 GB/s.
  EXPECT_THAT(explain(*plan),
              HasSubstr("exchange  nccl, 2 a layer, 10,240 B a row and peer; 128 a "
                        "step, and 2 for embedding and logits: at least 1.0 ms at 1 row, "
                        "2.7 at 64\n"));
  PlanRequest peer = request_of(2);
  peer.exchange = "peer";
  EXPECT_EQ(refused(config, machine, peer).reasons.at(0).hint, "--exchange nccl");
  machine.nccl = false;
  const Refusal none = refused(config, machine, request_of(2));
  EXPECT_EQ(none.reasons.at(0).rule, Rule::ranks);
  EXPECT_THAT(explain(none), HasSubstr("wanted libnccl.so.2 of version 2.27 or later"));
  EXPECT_EQ(last_of(none), "--tp 1");
}

TEST(PlanRanks, Case3NcclMattersOnlyWhereItIsUsed) {
  Machine machine = h200(2);
  machine.nccl = false;
  const ModelConfig config = published("qwen3-32b");
  EXPECT_TRUE(planned(config, machine, request_of(2)).ok());
  PlanRequest nccl = request_of(2);
  nccl.exchange = "nccl";
  const Refusal refusal = refused(config, machine, nccl);
  EXPECT_EQ(refusal.reasons.at(0).hint, "--exchange peer");
  EXPECT_EQ(last_of(refusal), "--tp 1 --exchange auto");
}

TEST(PlanRanks, Case5HeadsThatDoNotDivide) {
  ModelConfig config = published("qwen3-32b");
  AttentionProblem& p = config.groups.front().problem;
  p.heads = 40;
  p.kv_heads = 8;
  EXPECT_TRUE(planned(config, h200(8), request_of(8)).ok());
  p.heads = 20;
  p.kv_heads = 4;
  const Refusal heads = refused(config, h200(8), request_of(8));
  EXPECT_THAT(explain(heads), HasSubstr("attention heads   --tp   wanted ranks that divide 20   "
                                        "offered 8 ranks"));
  EXPECT_EQ(last_of(heads), "--tp 4");
  p.heads = 24;
  p.kv_heads = 6;
  const Refusal kv = refused(config, h200(8), request_of(4));
  EXPECT_THAT(explain(kv), HasSubstr("wanted ranks that divide 6 or are a multiple"));
  EXPECT_EQ(last_of(kv), "--tp 2");
  ModelConfig v4 = published("deepseek-v4-flash");
  v4.mla.o_groups = 4;
  const Refusal groups = refused(v4, h200(8), request_of(8));
  EXPECT_THAT(explain(groups), HasSubstr("o_groups"));
  EXPECT_EQ(last_of(groups), "--tp 4");
}

// Rows of heads that share a scale with another rank's.
TEST(PlanRanks, Case5SharesThatCutBlocksOfScales) {
  ModelConfig config = published("qwen3-235b-fp8");
  for (LayerGroupConfig& g : config.groups) {
    g.problem.head_dim = g.problem.v_head_dim = 64;
    g.problem.kv_heads = 8;
  }
  const Refusal r = refused(config, h200(8), request_of(8));
  EXPECT_THAT(explain(r), HasSubstr("k_proj   --tp   wanted shares of whole blocks of 128"));
  EXPECT_THAT(explain(r), HasSubstr("offered 64 of 512"));
  EXPECT_EQ(last_of(r), "--tp 4");
}

// int4 in groups of 128 weights of a row, MXFP4 in blocks of 32.
TEST(PlanRanks, Case5SharesThatCutGroups) {
  ModelConfig config = published("qwen3-32b");
  config.quantization = Quantization::int4;
  config.int4_group = 128;
  EXPECT_EQ(split_sizes(config).ffn_block, 128);
  EXPECT_TRUE(planned(config, h200(8), request_of(8)).ok());
  // GPTQ's order by activation spreads a head's columns over all groups.
  config.int4_order = true;
  const Refusal order = refused(config, h200(2), request_of(2));
  EXPECT_EQ(order.reasons.at(0).subject, "o_proj");
  EXPECT_EQ(last_of(order), "--tp 1");
  config.quantization = Quantization::mxfp4;
  EXPECT_EQ(split_sizes(config).ffn_block, 32);
  AttentionProblem& p = config.groups.front().problem;
  p.heads = p.kv_heads = 8;
  p.head_dim = p.v_head_dim = 16;
  for (const Machine& machine : {h200(8), describe_machine(Device::cpu)}) {
    const auto split = plan_ranks(config, machine, request_of(8));
    ASSERT_FALSE(split.ok());
    EXPECT_EQ(split.error().at(0).offered, "16 of 128");
    EXPECT_TRUE(plan_ranks(config, machine, request_of(4)).ok());
  }
}

// Gemma 4's full layers have wider heads than those with a window.
TEST(PlanRanks, Case5SharesThatCutGroupsInSomeLayers) {
  ModelConfig config = *load_model_config(fmt::format("{}/models/gemma4", LATHE_TEST_DATA));
  ASSERT_EQ(config.groups.size(), 2u);
  config.quantization = Quantization::nvfp4;
  for (std::size_t i = 0; i < 2; ++i) {
    AttentionProblem& p = config.groups[i].problem;
    p.heads = p.kv_heads = 4;
    p.head_dim = p.v_head_dim = i == 0 ? 32 : 16;
  }
  const auto split = plan_ranks(config, describe_machine(Device::cpu), request_of(4));
  ASSERT_FALSE(split.ok());
  EXPECT_EQ(split.error().at(0).subject, "o_proj");
  EXPECT_EQ(split.error().at(0).offered, "16 of 64");
  EXPECT_TRUE(plan_ranks(config, describe_machine(Device::cpu), request_of(2)).ok());
}

TEST(PlanRanks, Case6AWidthOfTooFewBlocks) {
  ModelConfig config = published("qwen3-235b-fp8");
  config.moe.ffn = 384;  // three blocks: by width among two ranks at most
  PlanRequest request = request_of(8);
  const auto plan = planned(config, h200(8), request);
  ASSERT_TRUE(plan.ok());
  EXPECT_LE(plan->ranks.parallel.expert_width, 2);
  request.expert_split = "width";
  const Refusal r = refused(config, h200(8), request);
  EXPECT_EQ(r.reasons.at(0).rule, Rule::ranks);
  EXPECT_THAT(r.reasons.at(0).hint, HasSubstr("--expert-split "));
  request.expert_split = r.reasons.at(0).hint.substr(15);
  EXPECT_TRUE(planned(config, h200(8), request).ok()) << request.expert_split;
  // No way at all: an odd number of experts.
  config.moe.experts = 127;
  request.expert_split = "auto";
  EXPECT_THAT(explain(refused(config, h200(8), request)),
              HasSubstr("wanted 3 blocks of 128 of a width, 127 experts in equal groups"));
  // A dense width of few blocks matters only if it is much of the model.
  ModelConfig dense = published("qwen3-32b");
  dense.ffn = 96;  // 1.2 % of the weights
  const Refusal few = refused(dense, h200(8), request_of(8));
  EXPECT_THAT(explain(few), HasSubstr("at most 6 ranks, as 96 is 6 blocks of 16"));
  EXPECT_EQ(last_of(few), "--tp 4");
  dense.ffn = 64;
  EXPECT_TRUE(planned(dense, h200(8), request_of(8)).ok());
}

// The shipped models' shared expert is one block of 128, in 98 and 49 KB: one rank has all of it.
// An e4m3 expert is one block, too, so these are shared by number; an MXFP4 one is four of 32.
TEST(PlanRanks, Case6ASmallWidthMayBeOnOneRank) {
  for (const auto& [name, number] : {std::pair{"tiny-v32", 2}, {"tiny-v4", 1}}) {
    const ModelConfig config =
        *load_model_config(fmt::format("{}/../../models/{}", LATHE_TEST_DATA, name));
    PlanRequest request = request_of(2);
    const auto plan = planned(config, h200(2), request);
    ASSERT_TRUE(plan.ok()) << name << explain(plan.error());
    EXPECT_EQ(plan->ranks.parallel.expert_number, number);
    EXPECT_EQ(share_of(plan->ranks.whole, plan->ranks.parallel, 0).shared.count, 0);
    EXPECT_EQ(share_of(plan->ranks.whole, plan->ranks.parallel, 1).shared.count, 128);
    if (number == 1) continue;
    request.expert_split = "width";
    EXPECT_EQ(refused(config, h200(2), request).reasons.at(0).hint, "--expert-split 1x2");
  }
  // Six blocks of 16 on 8 ranks, 1.2 % of the weights: 2 * 3 * 96 * hidden bytes in a layer.
  ModelConfig dense = published("qwen3-32b");
  dense.ffn = 96;
  dense.hidden = 1808;
  EXPECT_TRUE(planned(dense, h200(8), request_of(8)).ok());
  dense.hidden = 1824;  // 2 KiB more than 1 MiB
  EXPECT_FALSE(planned(dense, h200(8), request_of(8)).ok());
}

// gpt-oss has 90 blocks of 32 in a width: 12 on the fullest of 8 ranks, 11.25 on average.
TEST(PlanRanks, Case8TheFullestRankMustFit) {
  const ModelConfig config = published("gpt-oss-120b");
  PlanRequest request = request_of(8);
  request.expert_split = "width";
  Machine machine = h200(8);
  const auto fits = [&](std::int64_t bytes) {
    machine.memory_bytes = bytes;
    return planned(config, machine, request).ok();
  };
  std::int64_t below = 1 << 30, least = std::int64_t{64} << 30;
  while (least - below > 1 << 10) {
    const std::int64_t middle = below + (least - below) / 2;
    (fits(middle) ? least : below) = middle;
  }
  ASSERT_TRUE(fits(least));
  const RankPlan ranks = planned(config, machine, request)->ranks;
  EXPECT_EQ(share_of(ranks.whole, ranks.parallel, ranks.fullest).expert_width.count, 12 * 32);
  machine.memory_bytes = below;
  const Refusal r = refused(config, machine, request);
  EXPECT_EQ(r.reasons.at(0).rule, Rule::memory);
  EXPECT_THAT(r.reasons.at(0).subject, HasSubstr(fmt::format("rank {}'s", ranks.fullest)));
  // A width of 11 blocks, as the average nearly has, would have fitted.
  ModelConfig average = config;
  average.moe.ffn = 8 * 11 * 32;
  machine.memory_bytes = below;
  EXPECT_TRUE(planned(average, machine, request).ok());
}

TEST(PlanRanks, Case8AModelThatDoesNotFitSaysHowManyRanksDo) {
  const ModelConfig config = published("qwen3-235b-fp8");
  const Refusal one = refused(config, h200(8), request_of(1));
  EXPECT_EQ(last_of(one), "--tp 2");
  EXPECT_EQ(last_of(refused(published("deepseek-v3.2"), h200(8), request_of(2))), "--tp 8");
  EXPECT_TRUE(refused(published("deepseek-v3.2"), h200(4), request_of(4)).suggestions.empty());
}

TEST(PlanRanks, Case9TheLeastFreeMemoryCountsForEveryRank) {
  const ModelConfig config = published("llama-3.1-70b");
  Machine machine = h200(2);
  machine.free_bytes = {std::int64_t{138} << 30, std::int64_t{90} << 30};
  const auto plan = planned(config, machine, request_of(2));
  ASSERT_TRUE(plan.ok());
  EXPECT_THAT(explain(*plan), HasSubstr("ranks     GPU 1 has least free memory, 90.0 GiB"));
  EXPECT_EQ(rank_machine(machine, 2).memory_bytes, std::int64_t{90} << 30);
  // Of a GPU that no rank uses, nothing counts.
  EXPECT_EQ(rank_machine(machine, 1).memory_bytes, std::int64_t{138} << 30);
  machine.free_bytes[1] = std::int64_t{60} << 30;
  EXPECT_EQ(refused(config, machine, request_of(2)).reasons.at(0).rule, Rule::memory);
}

TEST(PlanRanks, ExchangesAndDealtLogitsHaveBudgets) {
  const ModelConfig config = published("qwen3-32b");
  PlanRequest request = request_of(4);
  const auto bytes = [&](BudgetKind kind) {
    const auto plan = planned(config, h200(4), request);
    EXPECT_TRUE(plan.ok());
    return plan->budget(kind)->bytes;
  };
  // Three planes of three peers' 256 rows, as sums that are not divided are pushed, and a buffer of
  // all rows of a step, in bf16.
  const std::int64_t row = 2 * 5120;
  EXPECT_EQ(bytes(BudgetKind::exchange), 3 * (3 * 256) * row + (2048 + 256) * row);
  EXPECT_EQ(bytes(BudgetKind::dealt_logits), 64 * 151936 * 4);
  EXPECT_EQ(bytes(BudgetKind::logits), 256 * (151936 / 4 + 32) * 4);
  request.exchange_dtype = "f32";
  EXPECT_EQ(refused(config, h200(4), request).reasons.at(0).hint, "--exchange-dtype auto");
}

TEST(PlanRanks, BadNumbersAreNamed) {
  const ModelConfig config = published("qwen3-32b");
  const auto says = [&](auto change) {
    PlanRequest request = request_of(2);
    change(request);
    return explain(refused(config, h200(8), request));
  };
  EXPECT_THAT(says([](PlanRequest& r) { r.tp = 3; }), HasSubstr("--tp"));
  EXPECT_THAT(says([](PlanRequest& r) { r.tp = 16; }),
              HasSubstr("wanted 1, 2, 4 or 8   offered 16"));
  EXPECT_THAT(says([](PlanRequest& r) { r.ep_size = 4; }), HasSubstr("--ep-size"));
  EXPECT_THAT(says([](PlanRequest& r) { r.ep_size = 2, r.expert_split = "width"; }),
              HasSubstr("--expert-split"));
  EXPECT_THAT(says([](PlanRequest& r) { r.exchange = "gloo"; }), HasSubstr("offered \"gloo\""));
  EXPECT_THAT(says([](PlanRequest& r) { r.exchange_dtype = "bf8"; }), HasSubstr("auto or f32"));
}

// A flag that cannot be followed is refused.
TEST(PlanRanks, OneRankHasNoFlagsOfRanks) {
  const ModelConfig config = published("qwen3-235b-fp8");
  const auto says = [&](auto change) {
    PlanRequest request = request_of(1);
    change(request);
    const Refusal refusal = refused(config, h200(8), request);
    EXPECT_EQ(refusal.reasons.at(0).wanted, "--tp 2, 4 or 8 with it");
    return refusal.reasons.at(0).field;
  };
  EXPECT_EQ(says([](PlanRequest& r) { r.exchange = "nccl"; }), "--exchange");
  EXPECT_EQ(says([](PlanRequest& r) { r.exchange = "peer"; }), "--exchange");
  EXPECT_EQ(says([](PlanRequest& r) { r.exchange_dtype = "f32"; }), "--exchange-dtype");
  EXPECT_EQ(says([](PlanRequest& r) { r.expert_split = "number"; }), "--expert-split");
  EXPECT_EQ(says([](PlanRequest& r) { r.expert_parallel = true; }), "--enable-expert-parallel");
}

TEST(PlanRanks, ACpusThreadsHaveOneExchange) {
  const ModelConfig config = *load_model_config(fmt::format("{}/models/llama", LATHE_TEST_DATA));
  for (const Device device : {Device::cpu, Device::ref}) {
    for (const char* exchange : {"peer", "nccl"}) {
      PlanRequest request = request_of(2);
      request.context_length = request.chunked_prefill_size = 256;
      request.exchange = exchange;
      const Refusal refusal = refused(config, with_ranks(describe_machine(device), 2), request);
      EXPECT_EQ(refusal.reasons.at(0).field, "--exchange");
      EXPECT_EQ(refusal.reasons.at(0).offered, fmt::format("--device {}", name(device)));
      EXPECT_EQ(refusal.reasons.at(0).hint, "--exchange auto");
    }
  }
}

TEST(PlanRanks, DenseModelsHaveNoExpertsToShare) {
  const ModelConfig config = published("qwen3-32b");
  const auto says = [&](auto change) {
    PlanRequest request = request_of(2);
    change(request);
    const Refusal refusal = refused(config, h200(2), request);
    EXPECT_EQ(refusal.reasons.at(0).wanted, "a model with experts");
    return refusal.reasons.at(0).field;
  };
  EXPECT_EQ(says([](PlanRequest& r) { r.expert_split = "2x1"; }), "--expert-split");
  EXPECT_EQ(says([](PlanRequest& r) { r.expert_parallel = true; }), "--enable-expert-parallel");
  EXPECT_EQ(says([](PlanRequest& r) { r.ep_size = 2; }), "--ep-size");
  PlanRequest one = request_of(2);
  one.ep_size = 1;
  EXPECT_TRUE(planned(config, h200(2), one).ok());
}

// Small models have widths of a few blocks; a CPU's ranks share them anyway.
TEST(PlanRanks, ACpusRanksMayHaveNoBlock) {
  for (const char* name : {"deepseek_v4_fp8", "gpt_oss", "qwen3_moe"}) {
    const auto config = load_model_config(fmt::format("{}/models/{}", LATHE_TEST_DATA, name));
    ASSERT_TRUE(config.ok());
    PlanRequest request = request_of(2);
    request.context_length = request.chunked_prefill_size = 256;
    const auto plan = planned(*config, describe_machine(Device::cpu), request);
    EXPECT_TRUE(plan.ok()) << name << explain(plan.error());
  }
}

// Every fixture on 8 ranks of a CPU has a plan, or a refusal that names the rule and a number of
// ranks that has one.
TEST(PlanRanks, Case5EveryFixtureOn8Ranks) {
  int planned_ones = 0, refused_ones = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(LATHE_TEST_DATA) + "/models")) {
    const auto config = load_model_config(entry.path().string());
    if (!config) continue;  // a fixture of refused configurations
    PlanRequest request = request_of(8);
    request.context_length = request.chunked_prefill_size = 256;
    const auto plan = planned(*config, describe_machine(Device::cpu), request);
    if (plan) {
      ++planned_ones;
      continue;
    }
    ++refused_ones;
    EXPECT_EQ(plan.error().reasons.at(0).rule, Rule::ranks) << entry.path();
    EXPECT_THAT(explain(plan.error()), HasSubstr("--tp ")) << entry.path();
  }
  EXPECT_GT(planned_ones, 3);
  EXPECT_GT(refused_ones, 3);
}

TEST(PlanRanks, ACpusRanksShareItsMemory) {
  const ModelConfig config = *load_model_config(fmt::format("{}/models/llama", LATHE_TEST_DATA));
  Machine machine = describe_machine(Device::cpu);
  machine.processors = 8;
  machine.memory_bytes = std::int64_t{16} << 30;
  PlanRequest request = request_of(2);
  request.context_length = request.chunked_prefill_size = 256;
  const auto plan = planned(config, machine, request);
  ASSERT_TRUE(plan.ok()) << explain(plan.error());
  EXPECT_EQ(plan->ranks.exchange.kind, ExchangeKind::host);
  EXPECT_EQ(plan->ranks.exchange.dtype, DType::f32);
  EXPECT_EQ(rank_machine(machine, 2).processors, 4);
  EXPECT_EQ(rank_machine(machine, 2).memory_bytes, std::int64_t{8} << 30);
  EXPECT_THAT(explain(*plan), HasSubstr("ranks     2 of this CPU's threads"));
}

}  // namespace
}  // namespace lathe
