#include "ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/test_scale.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/moe/route.h"
#include "kernels/ref/moe.h"
#include "ops/test/test_util.h"

namespace lathe {
namespace {

using ops_test::Context;
using ops_test::Rows;
using ops_test::Weight;

struct Routed {
  std::vector<std::int32_t> ids;
  std::vector<float> weights;
};

Routed run(const Router& router, const Rows& logits, Device device, int threads = 1,
           std::span<const std::int32_t> tokens = {}) {
  const auto n = static_cast<std::size_t>(logits.rows * router.top_k);
  Routed r{std::vector<std::int32_t>(n, -1), std::vector<float>(n)};
  Context c(threads, device);
  if (device == Device::ref) {
    ref_route(router, logits.view(), r.ids, r.weights, tokens);
  } else {
    cpu_route(c.ops.execution, c.arena, router, logits.view(), r.ids, r.weights, tokens);
  }
  return r;
}

Rows row_of(std::initializer_list<float> values) {
  Rows r(1, static_cast<std::int64_t>(values.size()));
  std::copy(values.begin(), values.end(), r.row(0));
  return r;
}

Router make(RouterScoring scoring, std::int32_t experts, std::int32_t top_k) {
  Router r;
  r.scoring = scoring;
  r.experts = experts;
  r.top_k = top_k;
  return r;
}

using Ids = std::vector<std::int32_t>;
constexpr Device kDevices[] = {Device::ref, Device::cpu};

// e^logit are 1, 2, 3, 4: softmax gives tenths.
TEST(Route, SoftmaxOfKnownLogits) {
  const Rows logits = row_of({0, std::log(2.0f), std::log(3.0f), std::log(4.0f)});
  Router r = make(RouterScoring::softmax, 4, 2);
  for (const Device device : kDevices) {
    r.normalize = false;
    Routed got = run(r, logits, device);
    EXPECT_EQ(got.ids, (Ids{3, 2}));
    EXPECT_NEAR(got.weights[0], 0.4, 1e-6);
    EXPECT_NEAR(got.weights[1], 0.3, 1e-6);
    r.normalize = true;
    got = run(r, logits, device);
    EXPECT_NEAR(got.weights[0], 4.0 / 7, 1e-6);
    EXPECT_NEAR(got.weights[1], 3.0 / 7, 1e-6);
  }
}

// sigmoid(log 3) = 3/4, sigmoid(0) = 1/2, sigmoid(-log 3) = 1/4.
TEST(Route, BiasChoosesAndDoesNotWeigh) {
  const float l = std::log(3.0f);
  const Rows logits = row_of({l, 0, -l});
  const float bias[] = {-1, 0, 0.5f};
  Router r = make(RouterScoring::sigmoid, 3, 2);
  r.bias = bias;
  r.scale = 2.5f;
  for (const Device device : kDevices) {
    const Routed got = run(r, logits, device);
    EXPECT_EQ(got.ids, (Ids{2, 1}));  // 0.75 beats 0.5 beats -0.25
    EXPECT_NEAR(got.weights[0], 2.5 / 3, 1e-6);
    EXPECT_NEAR(got.weights[1], 5.0 / 3, 1e-6);
  }
}

// sqrt(ln(1 + e^x)): nearly sqrt(x) where x is large, e^(x / 2) where it is small.
TEST(Route, SqrtSoftplus) {
  Router r = make(RouterScoring::sqrt_softplus, 5, 5);
  r.normalize = false;
  const Rows logits = row_of({-100, 0, 20, 100, 1e30f});
  for (const Device device : kDevices) {
    const Routed got = run(r, logits, device);
    EXPECT_EQ(got.ids, (Ids{4, 3, 2, 1, 0}));
    EXPECT_NEAR(got.weights[0] / 1e15f, 1, 1e-6);
    EXPECT_NEAR(got.weights[1], 10, 1e-6);
    EXPECT_NEAR(got.weights[2], std::sqrt(20.000000002061153), 1e-6);
    EXPECT_NEAR(got.weights[3], std::sqrt(std::log(2.0)), 1e-7);
    EXPECT_NEAR(got.weights[4] / std::exp(-50.0), 1, 1e-2);  // the root of a subnormal number
  }
}

// The token id's row of the table gives the experts; the scores without bias give their weights.
TEST(Route, ExpertsOfATokenWhateverTheScores) {
  Router r = make(RouterScoring::sqrt_softplus, 4, 2);
  const std::int32_t table[] = {0, 1, 3, 2, 2, 1};
  r.token_experts = table;
  r.scale = 1.5f;
  Rows logits(2, 4);
  for (std::int64_t t = 0; t < 2; ++t) {
    const float row[] = {9, 0, std::log(std::exp(4.0f) - 1), 5};  // ln(1 + e^x) = 4 of the third
    std::copy_n(row, 4, logits.row(t));
  }
  const std::int32_t tokens[] = {2, 1};
  for (const Device device : kDevices) {
    const Routed got = run(r, logits, device, 1, tokens);
    EXPECT_EQ(got.ids, (Ids{2, 1, 3, 2}));
    const double low = std::sqrt(std::log(2.0));
    EXPECT_NEAR(got.weights[0], 1.5 * 2 / (2 + low), 1e-6);
    EXPECT_NEAR(got.weights[1], 1.5 * low / (2 + low), 1e-6);
    EXPECT_NEAR(got.weights[2] + got.weights[3], 1.5, 1e-6);
  }
}

TEST(Route, TiesGoToTheLowerId) {
  for (const Device device : kDevices) {
    EXPECT_EQ(run(make(RouterScoring::sigmoid, 6, 3), row_of({0, 1, 0, 1, 1, 0}), device).ids,
              (Ids{1, 3, 4}));
    EXPECT_EQ(run(make(RouterScoring::softmax, 5, 4), row_of({0, 0, 0, 0, 0}), device).ids,
              (Ids{0, 1, 2, 3}));
  }
}

TEST(Route, GroupsStayByTheirTwoBest) {
  Router r = make(RouterScoring::sigmoid, 9, 2);
  r.groups = 3;
  r.top_groups = 1;
  // The single best expert is in the first group, the best pair in the second.
  const Rows logits = row_of({5, -5, -5, 2, 2, -5, 1, 1, 1});
  const Rows equal = row_of({0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (const Device device : kDevices) {
    r.top_groups = 1;
    EXPECT_EQ(run(r, logits, device).ids, (Ids{3, 4}));
    EXPECT_EQ(run(r, equal, device).ids, (Ids{0, 1}));  // ties to the lower group
    r.top_groups = 2;
    EXPECT_EQ(run(r, logits, device).ids, (Ids{3, 4}));  // groups 1 and 2: 1.76, 1.46 beat 1.00
    r.top_groups = 3;
    EXPECT_EQ(run(r, logits, device).ids, (Ids{0, 3}));
  }
}

// DeepSeek V2: a softmax, and the best expert of a group alone.
TEST(Route, GroupsStayByTheirBest) {
  Router r = make(RouterScoring::softmax, 9, 2);
  r.groups = 3;
  r.group_best = 1;
  r.normalize = false;
  r.scale = 16;
  const Rows logits = row_of({5, -5, -5, 4, 4, -5, 1, 1, 1});
  const double sum = std::exp(5) + 2 * std::exp(4) + 3 * std::exp(1) + 3 * std::exp(-5);
  for (const Device device : kDevices) {
    r.top_groups = 1;
    const Routed got = run(r, logits, device);
    EXPECT_EQ(got.ids, (Ids{0, 1}));  // by two: 3 and 4
    EXPECT_NEAR(got.weights[0], 16 * std::exp(5) / sum, 1e-5);
    EXPECT_NEAR(got.weights[1], 16 * std::exp(-5) / sum, 1e-6);
    r.top_groups = 2;
    EXPECT_EQ(run(r, logits, device).ids, (Ids{0, 3}));
    EXPECT_EQ(run(r, row_of({0, 0, 0, 0, 0, 0, 0, 0, 0}), device).ids, (Ids{0, 1}));
  }
}

// Gemma 4: a factor of each expert's weight, after the weights' sum has become 1.
TEST(Route, ExpertsScaleTheirWeights) {
  Router r = make(RouterScoring::softmax, 4, 2);
  const std::vector<float> scale = {1, 3, 1, 0.5f};
  r.expert_scale = scale;
  for (const Device device : kDevices) {
    const Routed got = run(r, row_of({0, 1, 0.5f, 1}), device);
    EXPECT_EQ(got.ids, (Ids{1, 3}));
    EXPECT_NEAR(got.weights[0], 1.5, 1e-6);
    EXPECT_NEAR(got.weights[1], 0.25, 1e-6);
  }
}

// An expert of a dropped group ranks below even a negative score.
TEST(Route, FallenGroupsAreNotChosen) {
  Router r = make(RouterScoring::sigmoid, 4, 2);
  r.groups = 2;
  const float bias[] = {-2, -2, -0.25f, -1};
  r.bias = bias;
  for (const Device device : kDevices) {
    const Routed got = run(r, row_of({0, 0, 0, 0}), device);
    EXPECT_EQ(got.ids, (Ids{2, 3}));  // 0.25 and -0.5; experts 0 and 1 would have -1.5
    EXPECT_NEAR(got.weights[0], 0.5, 1e-6);
  }
}

TEST(Route, GroupsOfOneExpert) {
  Router r = make(RouterScoring::sigmoid, 3, 2);
  r.groups = 3;
  r.top_groups = 2;
  for (const Device device : kDevices) {
    EXPECT_EQ(run(r, row_of({1, 3, 2}), device).ids, (Ids{1, 2}));
  }
}

TEST(Route, NanChoosesIdsInRangeAndApart) {
  const float nan = __builtin_nanf("");
  const float inf = __builtin_inff();
  for (const Device device : kDevices) {
    for (const RouterScoring scoring : {RouterScoring::sigmoid, RouterScoring::softmax}) {
      for (const std::int32_t groups : {1, 2}) {
        Router r = make(scoring, 4, 3);
        r.groups = groups;
        for (const Rows& logits : {row_of({nan, nan, nan, nan}), row_of({nan, 1, nan, 2}),
                                   row_of({inf, inf, 0, -inf}), row_of({-inf, -inf, -inf, -inf})}) {
          const Routed got = run(r, logits, device);
          const std::set<std::int32_t> distinct(got.ids.begin(), got.ids.end());
          EXPECT_EQ(distinct.size(), 3u);
          EXPECT_GE(*distinct.begin(), 0);
          EXPECT_LT(*distinct.rbegin(), 4);
        }
      }
    }
  }
}

// Logits are so far apart that f32 and double choose the same experts.
TEST(Route, AgreesWithRef) {
  std::mt19937 rng(test_seed(1));
  for (const RouterScoring scoring : enum_values<RouterScoring>()) {
    for (const std::int32_t groups : {1, 8}) {
      Router r = make(scoring, 64, 6);
      r.groups = groups;
      r.top_groups = groups == 1 ? 1 : 3;
      r.scale = 2.5f;
      const std::int64_t rows = 60;
      Rows bias(1, 64, 0, 0);
      for (int i = 0; i < 64; ++i) bias.row(0)[i] = static_cast<float>(i * 37 % 64) * 0.003f;
      if (scoring == RouterScoring::sigmoid) r.bias = {bias.row(0), 64};
      Rows logits(rows, 64);
      logits.randomize(rng);
      const Routed want = run(r, logits, Device::ref);
      for (const int threads : {1, 3}) {
        const Routed got = run(r, logits, Device::cpu, threads);
        EXPECT_EQ(got.ids, want.ids);
        for (std::size_t i = 0; i < want.weights.size(); ++i) {
          EXPECT_NEAR(got.weights[i], want.weights[i], 1e-5 * want.weights[i]);
        }
      }
    }
  }
}

struct Experts {
  std::vector<Weight> weights;
  ExpertStacks stacks;

  Experts(std::mt19937& rng, std::int64_t count, std::int64_t n, std::int64_t ffn, DType dtype) {
    weights.reserve(static_cast<std::size_t>(3 * count));
    for (std::int64_t e = 0; e < count; ++e) {
      const bool scaled = dtype == DType::e4m3;
      for (int i = 0; i < 2; ++i) weights.emplace_back(rng, dtype, ffn, n, scaled);
      weights.emplace_back(rng, dtype, n, ffn, scaled);
    }
    stacks.gate = stacks.up = WeightStack::of(count, dtype, ffn, n);
    stacks.down = WeightStack::of(count, dtype, n, ffn);
    for (std::int64_t e = 0; e < count; ++e) {
      const auto at = static_cast<std::size_t>(3 * e);
      stacks.gate.set(e, weights[at].view);
      stacks.up.set(e, weights[at + 1].view);
      stacks.down.set(e, weights[at + 2].view);
    }
  }
};

// Runs the experts with a given choice.
void moe_ffn(Context& c, const RowsView& x, const ExpertStacks& experts,
             std::span<const std::int32_t> ids, std::span<const float> weights, std::int64_t top_k,
             const MutableRowsView& out, bool weighs_inputs = false) {
  ExpertLayer op{.x = x,
                 .router = {},
                 .router_bias = {},
                 .choice = {},
                 .activation = {},
                 .experts = &experts,
                 .out = out};
  op.choice.top_k = static_cast<std::int32_t>(top_k);
  op.choice.weighs_inputs = weighs_inputs;
  if (c.backend->device() == Device::ref) return ref_expert_ffn(op, ids, weights);
  cpu_expert_ffn(c.ops, op, ids, weights);
}

struct Choices {
  Ids ids;
  std::vector<float> weights;

  Choices(std::mt19937& rng, std::int64_t tokens, std::int64_t top_k, std::int32_t experts) {
    std::uniform_real_distribution<float> uniform(0.1f, 1);
    for (std::int64_t t = 0; t < tokens; ++t) {
      Ids all;
      for (std::int32_t e = 0; e < experts; ++e) {
        if (e != 1) all.push_back(e);  // no token chooses expert 1
      }
      std::shuffle(all.begin(), all.end(), rng);
      ids.insert(ids.end(), all.begin(), all.begin() + static_cast<std::ptrdiff_t>(top_k));
      for (std::int64_t j = 0; j < top_k; ++j) weights.push_back(uniform(rng));
    }
  }
};

double norm_of_difference(const Rows& a, const Rows& b) {
  double sum = 0;
  for (std::int64_t t = 0; t < a.rows; ++t) {
    for (std::int64_t i = 0; i < a.cols; ++i) {
      sum += std::pow(double{a.row(t)[i]} - b.row(t)[i], 2);
    }
  }
  return std::sqrt(sum);
}

TEST(MoeFfn, AgreesWithRef) {
  std::mt19937 rng(test_seed(2));
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    for (const std::int64_t tokens : {0, 1, 2, 7, 33}) {
      const std::int64_t n = 130, ffn = 49, top_k = 3;
      const Experts experts(rng, 9, n, ffn, dtype);
      const Choices c(rng, tokens, top_k, 9);
      Rows x(tokens, n);
      x.randomize(rng);
      Rows got(tokens, n);
      got.randomize(rng);
      const Rows before = got;
      Rows want = got;
      Context cpu(2), ref(1, Device::ref);
      moe_ffn(cpu, x.view(), experts.stacks, c.ids, c.weights, top_k, got.out());
      moe_ffn(ref, x.view(), experts.stacks, c.ids, c.weights, top_k, want.out());
      // The sum of about 10^4 f32 products has a relative error of about 1e-6. A missing expert or
      // a wrong weight would be an error of order 1.
      const double added = norm_of_difference(want, before);
      EXPECT_LE(norm_of_difference(got, want), 1e-5 * added) << name(dtype) << " " << tokens;
      EXPECT_EQ(added > 1e-3, tokens > 0);
    }
  }
}

// Weights of inputs are those of the inputs: with one expert a token, that of a token whose row has
// been multiplied before.
TEST(MoeFfn, WeightsMayMultiplyTheInputs) {
  std::mt19937 rng(test_seed(5));
  const std::int64_t n = 66, ffn = 34, tokens = 9;
  const Experts experts(rng, 5, n, ffn, DType::bf16);
  for (const std::int64_t top_k : {1, 2}) {
    const Choices c(rng, tokens, top_k, 5);
    Rows x(tokens, n), got(tokens, n, 0), want(tokens, n, 0), ref_got(tokens, n, 0);
    x.randomize(rng);
    Context cpu(2), ref(1, Device::ref);
    moe_ffn(cpu, x.view(), experts.stacks, c.ids, c.weights, top_k, got.out(), true);
    moe_ffn(ref, x.view(), experts.stacks, c.ids, c.weights, top_k, ref_got.out(), true);
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t j = 0; j < top_k; ++j) {
        const auto at = static_cast<std::size_t>(t * top_k + j);
        Rows row(1, n), sum(1, n, 0);
        for (std::int64_t i = 0; i < n; ++i) row.row(0)[i] = x.row(t)[i] * c.weights[at];
        const float one = 1;
        moe_ffn(ref, row.view(), experts.stacks, std::span(c.ids).subspan(at, 1), {&one, 1}, 1,
                sum.out());
        for (std::int64_t i = 0; i < n; ++i) want.row(t)[i] += sum.row(0)[i];
      }
    }
    const double norm = norm_of_difference(want, Rows(tokens, n, 0));
    EXPECT_LE(norm_of_difference(got, want), 1e-5 * norm) << top_k;
    EXPECT_LE(norm_of_difference(ref_got, want), 1e-6 * norm) << top_k;
  }
}

// The same bits with several passes, any number of threads and any other tokens.
TEST(MoeFfn, ARowsBitsAreItsOwn) {
  std::mt19937 rng(test_seed(3));
  const std::int64_t tokens = 900, n = 24, ffn = 20, top_k = 3;
  const Experts experts(rng, 6, n, ffn, DType::bf16);
  const Choices c(rng, tokens, top_k, 6);
  Rows x(tokens, n), start(tokens, n);
  x.randomize(rng);
  start.randomize(rng);
  Context one(1);
  Rows alone = start;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const auto at = static_cast<std::size_t>(t * top_k);
    const std::span<const std::int32_t> ids(c.ids.data() + at, 3);
    moe_ffn(one, x.view(t, 1), experts.stacks, ids, std::span(c.weights.data() + at, 3), top_k,
            alone.out(t, 1));
  }
  for (const int threads : {1, 2, 3}) {
    Context context(threads);
    Rows together = start;
    moe_ffn(context, x.view(), experts.stacks, c.ids, c.weights, top_k, together.out());
    EXPECT_TRUE(together.same_bits(alone)) << threads;
    const std::int64_t growths = context.arena.growths();
    moe_ffn(context, x.view(), experts.stacks, c.ids, c.weights, top_k, together.out());
    EXPECT_EQ(context.arena.growths(), growths);
  }
}

// The whole layer with its router, for logits that are far apart.
TEST(ExpertLayer, AgreesWithRef) {
  std::mt19937 rng(test_seed(5));
  for (const DType dtype : {DType::bf16, DType::e4m3}) {
    const std::int64_t n = 96, ffn = 40, experts = 8;
    const Experts stacks(rng, experts, n, ffn, dtype);
    const Weight router(rng, DType::f32, experts, n);
    for (const std::int64_t tokens : {0, 1, 19}) {
      Rows x(tokens, n);
      x.randomize(rng);
      Rows got(tokens, n);
      got.randomize(rng);
      const Rows before = got;
      Rows want = got;
      Context cpu(2), ref(1, Device::ref);
      ExpertLayer op{.x = x.view(),
                     .router = router.view,
                     .router_bias = {},
                     .choice = make(RouterScoring::sigmoid, experts, 3),
                     .activation = {},
                     .experts = &stacks.stacks,
                     .out = got.out()};
      expert_layer(cpu.ops, op);
      op.out = want.out();
      expert_layer(ref.ops, op);
      const double added = norm_of_difference(want, before);
      EXPECT_LE(norm_of_difference(got, want), 1e-4 * added) << name(dtype) << " " << tokens;
      EXPECT_EQ(added > 1e-3, tokens > 0);
    }
  }
}

// As in gpt-oss: MXFP4, gate and up interleaved, all biases, and its activation.
TEST(ExpertLayer, AgreesWithRefWithBiasesAndTurns) {
  std::mt19937 rng(test_seed(6));
  for (const DType dtype : {DType::e2m1, DType::bf16}) {
    const std::int64_t n = 96, ffn = 64, experts = 8;
    std::vector<Weight> weights;
    ExpertStacks stacks;
    stacks.gate = WeightStack::of(experts, dtype, 2 * ffn, n);
    stacks.down = WeightStack::of(experts, dtype, n, ffn);
    weights.reserve(2 * experts);
    for (std::int64_t e = 0; e < experts; ++e) {
      stacks.gate.set(e, weights.emplace_back(rng, dtype, 2 * ffn, n).view);
      stacks.down.set(e, weights.emplace_back(rng, dtype, n, ffn).view);
    }
    const Weight router(rng, DType::f32, experts, n);
    Rows gate_bias(1, experts * 2 * ffn), down_bias(1, experts * n), router_bias(1, experts);
    for (Rows* bias : {&gate_bias, &down_bias, &router_bias}) bias->randomize(rng);
    const auto of = [](const Rows& bias) {
      return std::span(bias.row(0), static_cast<std::size_t>(bias.cols));
    };
    stacks.gate_bias = of(gate_bias);
    stacks.down_bias = of(down_bias);
    for (const std::int64_t tokens : {0, 1, 19}) {
      Rows x(tokens, n);
      x.randomize(rng);
      Rows got(tokens, n);
      got.randomize(rng);
      const Rows before = got;
      Rows want = got;
      Context cpu(2), ref(1, Device::ref);
      ExpertLayer op{.x = x.view(),
                     .router = router.view,
                     .router_bias = of(router_bias),
                     .choice = make(RouterScoring::softmax, experts, 3),
                     .activation = {.kind = ActivationKind::clamped_swiglu},
                     .experts = &stacks,
                     .out = got.out()};
      expert_layer(cpu.ops, op);
      op.out = want.out();
      expert_layer(ref.ops, op);
      const double added = norm_of_difference(want, before);
      EXPECT_LE(norm_of_difference(got, want), 1e-4 * added) << name(dtype) << " " << tokens;
      EXPECT_EQ(added > 1e-3, tokens > 0);
    }
  }
}

TEST(MoeFfnDeathTest, RefusesIdsOutsideTheExperts) {
  std::mt19937 rng(test_seed(4));
  const Experts experts(rng, 2, 8, 8, DType::f32);
  const Rows x(1, 8, 1);
  Rows out(1, 8, 0);
  Context c(1);
  const Ids ids = {2};
  const std::vector<float> weights = {1};
  EXPECT_DEATH(moe_ffn(c, x.view(), experts.stacks, ids, weights, 1, out.out()),
               "ids name experts");
}

}  // namespace
}  // namespace lathe
