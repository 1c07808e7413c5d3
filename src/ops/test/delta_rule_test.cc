// Delta-rule layers on ref and cpu, against double precision. Their bits do not depend on how a
// request's rows are cut into steps.
#include "ops/test/delta_rule_test_util.h"

#include "kernels/cpu/test/targets_test_util.h"

namespace lathe {
namespace {

using namespace delta_test;

// Of f32 over a few hundred tokens. Where q^T S nearly cancels, the norm makes a row's error
// larger.
constexpr double kBound = 2e-5, kAllBound = 2e-4, kRowBound = 1e-2;

std::vector<DeltaRuleProblem> problems() {
  return {gdn(4, 2, 16, 32),    gdn(2, 2, 48, 16),   kda(3, 32, 80),
          kda(2, 16, 16, true), gdn(2, 1, 128, 128), kda(1, 128, 128)};
}

unsigned drawn_seed() {
  const unsigned seed = test_seed(std::random_device()());
  std::printf("seed %u\n", seed);
  return seed;
}

// Cuts of `tokens` rows: one by one, and random ones.
std::vector<std::int64_t> random_cut(std::mt19937& rng, std::int64_t tokens, unsigned most) {
  std::vector<std::int64_t> out;
  for (std::int64_t left = tokens; left > 0; left -= out.back()) {
    out.push_back(std::min<std::int64_t>(left, 1 + static_cast<std::int64_t>(rng() % most)));
  }
  return out;
}

TEST(DeltaRule, OutputsAndStatesAreThoseOfTheRecurrence) {
  std::mt19937 rng(drawn_seed());
  for (const DeltaRuleProblem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    const DeltaWeights weights(rng, p);
    for (const std::int64_t tokens : {1, 3, 63, 64, 65, 200}) {
      const DeltaSequence sequence(rng, weights, tokens);
      for (const Device device : {Device::ref, Device::cpu}) {
        DeltaLayer layer(weights, device, 1, 2);
        layer.step({&sequence}, {tokens});
        const DeltaErrors errors = errors_of(layer, 0, sequence);
        EXPECT_LT(errors.worst_row, kRowBound) << name(device) << ", " << tokens << " tokens";
        if (tokens > 60) {
          EXPECT_LT(errors.all, kAllBound) << name(device) << ", " << tokens << " tokens";
        }
        EXPECT_LT(errors.state, kBound) << name(device) << ", " << tokens << " tokens";
      }
    }
  }
}

TEST(DeltaRule, EverySimdTarget) {
  std::mt19937 rng(3);
  for (const DeltaRuleProblem& p : problems()) {
    const DeltaWeights weights(rng, p);
    const DeltaSequence sequence(rng, weights, 70);
    cpu_test::on_every_target([&] {
      DeltaLayer layer(weights, Device::cpu, 1);
      layer.step({&sequence}, {70});
      EXPECT_LT(errors_of(layer, 0, sequence).all, kAllBound) << name_of(p);
    });
  }
}

TEST(DeltaRule, AnyCutGivesTheSameBits) {
  std::mt19937 rng(drawn_seed());
  constexpr std::int64_t kTokens = 300;
  for (const DeltaRuleProblem& p : problems()) {
    SCOPED_TRACE(name_of(p));
    const DeltaWeights weights(rng, p);
    const DeltaSequence sequence(rng, weights, kTokens);
    for (const Device device : {Device::ref, Device::cpu}) {
      DeltaLayer whole(weights, device, 1, 2);
      whole.step({&sequence}, {kTokens});
      std::vector<std::vector<std::int64_t>> cuts = {std::vector<std::int64_t>(kTokens, 1)};
      for (int i = 0; i < 3 * test_scale(); ++i) cuts.push_back(random_cut(rng, kTokens, 90));
      for (const auto& cut : cuts) {
        DeltaLayer parts(weights, device, 1, 1);
        for (const std::int64_t n : cut) parts.step({&sequence}, {n});
        EXPECT_TRUE(parts.outputs(0) == whole.outputs(0));
        EXPECT_TRUE(same_bits(parts.state(0), whole.state(0)));
      }
    }
  }
}

// The state at the end of a slot's tokens is the one of a request that ends there.
TEST(DeltaRule, SlotsKeepTheStateAtTheirEnd) {
  std::mt19937 rng(6);
  for (const DeltaRuleProblem& p : problems()) {
    const DeltaWeights weights(rng, p);
    const DeltaSequence sequence(rng, weights, 2 * kDeltaSlotTokens + 9);
    for (const Device device : {Device::ref, Device::cpu}) {
      DeltaLayer whole(weights, device, 1, 2), half(weights, device, 1);
      whole.step({&sequence}, {sequence.tokens()});
      for (int i = 1; i <= 2; ++i) {
        half.step({&sequence}, {kDeltaSlotTokens});
        EXPECT_TRUE(same_bits(whole.state(0, i * kDeltaSlotTokens - 1), half.state(0)));
      }
    }
  }
}

TEST(DeltaRule, RejectedRowsLeaveNothing) {
  constexpr std::int64_t kBanks = 8, kTokens = 160;
  std::mt19937 rng(drawn_seed());
  for (const DeltaRuleProblem& p : {gdn(4, 2, 16, 32), kda(3, 32, 80)}) {
    for (const Device device : {Device::ref, Device::cpu}) {
      const DeltaWeights weights(rng, p);
      const DeltaSequence sequence(rng, weights, kTokens), wrong(rng, weights, kTokens);
      DeltaLayer plain(weights, device, 1), drafted(weights, device, 1, 2, kBanks);
      while (drafted.done() < kTokens) {
        const std::int64_t room = std::min(kBanks - 1, kTokens - 1 - drafted.done());
        const auto drafts = static_cast<std::int64_t>(rng() % static_cast<unsigned>(room + 1));
        const auto right = static_cast<std::int64_t>(rng() % static_cast<unsigned>(drafts + 1));
        drafted.verify(sequence, wrong, right, drafts);
        while (plain.done() < drafted.done()) plain.step({&sequence}, {1});
        ASSERT_TRUE(same_bits(plain.state(0), drafted.state(0))) << drafted.done() << " tokens";
      }
      EXPECT_TRUE(plain.outputs(0) == drafted.outputs(0));
    }
  }
}

TEST(DeltaRule, RequestsOfABatchDoNotTouchEachOther) {
  std::mt19937 rng(drawn_seed());
  constexpr std::int64_t kTokens = 150;
  for (const DeltaRuleProblem& p : problems()) {
    for (const Device device : {Device::ref, Device::cpu}) {
      const DeltaWeights weights(rng, p);
      std::vector<DeltaSequence> tokens;
      for (int r = 0; r < 3; ++r) tokens.emplace_back(rng, weights, kTokens);
      DeltaLayer batch(weights, device, 3, 2);
      while (batch.done(0) + batch.done(1) + batch.done(2) < 3 * kTokens) {
        std::vector<std::int64_t> rows;
        for (std::size_t r = 0; r < 3; ++r) {
          const auto n = static_cast<std::int64_t>(rng() % 3 == 0 ? rng() % 80 : rng() % 2);
          rows.push_back(std::min(n, kTokens - batch.done(r)));
        }
        batch.step({&tokens[0], &tokens[1], &tokens[2]}, rows);
      }
      for (std::size_t r = 0; r < 3; ++r) {
        DeltaLayer alone(weights, device, 1);
        alone.step({&tokens[r]}, {kTokens});
        EXPECT_TRUE(alone.outputs(0) == batch.outputs(r)) << name_of(p) << ", request " << r;
        EXPECT_TRUE(same_bits(alone.state(0), batch.state(r))) << name_of(p) << ", request " << r;
      }
    }
  }
}

// Gates that forget all, gates that forget nothing, and tokens without q, k or v.
TEST(DeltaRule, ExtremeGatesAndZeroRows) {
  std::mt19937 rng(8);
  for (const DeltaRuleProblem& p : problems()) {
    const DeltaWeights weights(rng, p);
    for (const float f : {-1e4f, 1e4f, 0.0f}) {
      DeltaSequence sequence(rng, weights, 140);
      for (std::int64_t t = 0; t < 140; ++t) {
        if (f != 0 && t % 3 != 0) {
          std::fill_n(sequence.inputs().decay.row(t), p.gate_cols(), t % 2 == 0 ? f : -f);
        }
        if (t % 20 > 11) std::fill_n(sequence.inputs().x.row(t), p.channels(), 0.0f);
        if (t % 7 == 0)
          std::fill_n(sequence.inputs().beta.row(t), p.heads, t % 2 == 0 ? 20.0f : -20.0f);
      }
      for (const Device device : {Device::ref, Device::cpu}) {
        DeltaLayer layer(weights, device, 1);
        layer.step({&sequence}, {sequence.tokens()});
        EXPECT_LT(errors_of(layer, 0, sequence).all, kAllBound) << name_of(p) << ", f " << f;
      }
    }
  }
}

// The error does not grow with the context.
TEST(DeltaRule, LongSequencesStayExact) {
  std::mt19937 rng(9);
  Context context(2);
  const auto run = [&](const DeltaRule& op, std::span<std::byte>) {
    return delta_rule(context.ops, op);
  };
  for (const DeltaRuleProblem& p : {gdn(1, 1, 64, 32), kda(1, 32, 32)}) {
    const DeltaWeights weights(rng, p);
    const DeltaErrors errors =
        errors_of_long_step(weights, DeltaSequence(rng, weights, 65536, 3), run);
    EXPECT_LT(errors.all, kAllBound) << name_of(p);
    EXPECT_LT(errors.state, kAllBound) << name_of(p);
  }
}

TEST(DeltaRule, ShapesThatAreRefused) {
  const auto field = [](const DeltaRuleProblem& p) {
    const auto ok = check_delta_rule(p);
    return ok.ok() ? std::string() : ok.error().field;
  };
  EXPECT_EQ(field(gdn(4, 2, 16, 32)), "");
  EXPECT_EQ(field(gdn(0, 1, 16, 16)), "heads");
  EXPECT_EQ(field(gdn(4, 3, 16, 16)), "key_heads");
  EXPECT_EQ(field(gdn(4, 2, 24, 16)), "dk");
  EXPECT_EQ(field(gdn(4, 2, 16, 0)), "dv");
  DeltaRuleProblem p = kda(2, 16, 16, true);
  EXPECT_EQ(field(p), "");
  p.gate_bound = 0;
  EXPECT_EQ(field(p), "gate_bound");
  p = kda(2, 16, 16);
  p.key_heads = 1;
  EXPECT_EQ(field(p), "key_heads");
  p = gdn(4, 2, 16, 16);
  p.conv = 9;
  EXPECT_EQ(field(p), "conv");
}

}  // namespace
}  // namespace lathe
