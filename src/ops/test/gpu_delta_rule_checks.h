// The CUDA backend's delta-rule layers, on a GPU or emulated, against double precision. Inputs of
// the recurrence are bf16 there, in the chunked form.
#pragma once

#include "ops/test/delta_rule_test_util.h"
#include "ops/test/gpu_test_util.h"

namespace lathe {
namespace {

using namespace delta_test;

// Copies all data to the device, runs the operator, and copies outputs and states back.
Result<void> run_delta_there(const DeltaRule& op, std::span<std::byte> states) {
  ops_test::GpuContext gpu;
  const auto list = [&]<class T>(std::span<const T> from) {
    return std::span<const T>(reinterpret_cast<const T*>(gpu.bring(from.data(), from.size_bytes())),
                              from.size());
  };
  const auto rows = [&](const RowsView& x) {
    // Padded to 64 bytes, as rows in an arena.
    Rows copy(x.rows, x.cols, 0, 16 - x.cols % 16);
    for (std::int64_t r = 0; r < x.rows; ++r) {
      std::memcpy(copy.row(r), x.row(r), static_cast<std::size_t>(x.cols) * sizeof(float));
    }
    return constant(gpu.rows(copy));
  };
  const StepView& step = *op.step;
  StepView v = step;
  v.positions = list(step.positions);
  v.row_request = list(step.row_request);
  v.q_indptr = list(step.q_indptr);
  v.kv_lens = list(step.kv_lens);
  v.state_before = list(step.state_before);
  const std::span table(step.state_table.data,
                        static_cast<std::size_t>(step.requests * step.state_table.width));
  v.state_table.data = list(table).data();
  DeltaRule there = op;
  there.step = &v;
  there.x = rows(op.x);
  there.decay = rows(op.decay);
  there.beta = rows(op.beta);
  there.gate = rows(op.gate);
  there.conv = list(op.conv);
  there.a_log = list(op.a_log);
  there.dt_bias = list(op.dt_bias);
  there.norm = list(op.norm);
  there.state.data = gpu.bring(states.data(), states.size());
  there.out = gpu.bf16_rows(Rows(op.out.rows, op.out.cols, 0, 16));
  if (auto ok = delta_rule(gpu.ops, there); !ok) return ok;
  const Rows out = gpu.read(there.out);
  for (std::int64_t r = 0; r < out.rows; ++r) {
    std::memcpy(op.out.row(r), out.row(r), static_cast<std::size_t>(out.cols) * sizeof(float));
    for (std::int64_t c = out.cols; c < out.stride; ++c) EXPECT_EQ(out.row(r)[c], 0) << "a gap";
  }
  EXPECT_TRUE(gpu.backend->download(gpu.ops, there.state.data, states).ok());
  EXPECT_LE(gpu.tensors.high_water(), delta_scratch_bytes(op.problem, step.rows, step.requests));
  return {};
}

// Outputs are rounded to bf16 before and after the norm. In the chunked form q, k and v are bf16
// too: where q^T k nearly cancels, the norm makes a row's error larger than the average.
constexpr double kRowsBound = 8e-3, kChunkBound = 0.1, kDeltaBound = 5e-3;
std::vector<DeltaRuleProblem> wide_problems() {
  return {gdn(2, 1, 128, 128), kda(1, 128, 128), kda(1, 128, 128, true)};
}

TEST(GpuDeltaRule, RowByRow) {
  const auto seed = test_seed(20261127);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const DeltaRuleProblem& p : {gdn(4, 2, 16, 32), gdn(2, 2, 48, 16), kda(3, 32, 80),
                                    kda(2, 16, 16, true), gdn(2, 1, 128, 128), kda(1, 128, 128)}) {
    SCOPED_TRACE(name_of(p));
    const delta_test::DeltaWeights weights(rng, p);
    const DeltaSequence sequence(rng, weights, 40);
    DeltaLayer layer(weights, run_delta_there, 1);
    while (layer.done() < 40) {
      layer.step({&sequence}, {std::min<std::int64_t>(1 + static_cast<std::int64_t>(rng() % 16),
                                                      40 - layer.done())});
    }
    const DeltaErrors errors = errors_of(layer, 0, sequence);
    EXPECT_LT(errors.worst_row, kRowsBound);
    EXPECT_LT(errors.state, 1e-5);
  }
}

// Value heads of a key head share the last inputs of its convolution, which a step replaces.
TEST(GpuDeltaRule, OneRowOfEachRequest) {
  constexpr std::size_t kRequests = 3;
  constexpr std::int64_t kRows = 6;
  std::mt19937 rng(test_seed(20261130));
  for (const DeltaRuleProblem& p : {gdn(6, 2, 16, 32), gdn(8, 1, 32, 16), gdn(18, 2, 16, 16),
                                    kda(3, 32, 80), gdn(2, 1, 128, 128), kda(1, 128, 128, true)}) {
    SCOPED_TRACE(name_of(p));
    const delta_test::DeltaWeights weights(rng, p);
    std::vector<DeltaSequence> tokens;
    for (std::size_t r = 0; r < kRequests; ++r) tokens.emplace_back(rng, weights, kRows);
    DeltaLayer layer(weights, run_delta_there, kRequests);
    // One request is a token behind, and one begins with several.
    layer.step({&tokens[0], &tokens[1], &tokens[2]}, {1, 0, 3});
    for (std::int64_t t = 1; t < kRows; ++t) {
      layer.step({&tokens[0], &tokens[1], &tokens[2]}, {1, 1, t + 2 < kRows ? 1 : 0});
    }
    for (std::size_t r = 0; r < kRequests; ++r) {
      const DeltaErrors errors = errors_of(layer, r, tokens[r]);
      EXPECT_LT(errors.worst_row, kRowsBound) << r;
      EXPECT_LT(errors.state, 1e-5) << r;
    }
  }
}

TEST(GpuDeltaRule, EveryRowThatChecksADraftLeavesItsState) {
  constexpr std::int64_t kBanks = 8;
  std::mt19937 rng(test_seed(12));
  for (const DeltaRuleProblem& p : {gdn(4, 2, 16, 32), kda(3, 32, 80)}) {
    const delta_test::DeltaWeights weights(rng, p);
    for (const std::int64_t cached : {std::int64_t{0}, std::int64_t{1}, kDeltaSlotTokens - 3}) {
      for (const std::int64_t rows : {std::int64_t{2}, kBanks}) {
        const DeltaSequence sequence(rng, weights, cached + rows);
        DeltaLayer cpu(weights, Device::cpu, 1, 1, kBanks);
        DeltaLayer gpu(weights, run_delta_there, 1, kBanks);
        for (DeltaLayer* layer : {&cpu, &gpu}) {
          if (cached > 0) layer->step({&sequence}, {cached});
          layer->step(Phase::verify, {&sequence}, {rows});
        }
        for (std::int64_t at = cached; at < cached + rows; ++at) {
          for (std::size_t i = 0; i < cpu.state(0, at).size(); ++i) {
            ASSERT_NEAR(gpu.state(0, at)[i], cpu.state(0, at)[i], 1e-5) << "after " << at;
          }
        }
      }
    }
  }
}

TEST(GpuDeltaRule, InChunks) {
  const auto seed = test_seed(20261128);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const DeltaRuleProblem& p : wide_problems()) {
    SCOPED_TRACE(name_of(p));
    const delta_test::DeltaWeights weights(rng, p);
    for (const std::int64_t tokens : {17, 64, 65, 200}) {
      const DeltaSequence sequence(rng, weights, tokens);
      DeltaLayer layer(weights, run_delta_there, 1);
      layer.step({&sequence}, {tokens});
      const DeltaErrors errors = errors_of(layer, 0, sequence);
      EXPECT_LT(errors.worst_row, kChunkBound) << tokens << " tokens";
      EXPECT_LT(errors.all, kDeltaBound) << tokens << " tokens";
      EXPECT_LT(errors.state, kDeltaBound) << tokens << " tokens";
    }
  }
}

// Chunks begin at multiples of 64, wherever a step begins; slots get the states at their ends.
TEST(GpuDeltaRule, BatchesAndCuts) {
  const auto seed = test_seed(20261129);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  constexpr std::int64_t kLength = kDeltaSlotTokens + 40;
  for (const DeltaRuleProblem& p : {gdn(2, 1, 128, 128), kda(1, 128, 128)}) {
    SCOPED_TRACE(name_of(p));
    const delta_test::DeltaWeights weights(rng, p);
    std::vector<DeltaSequence> tokens;
    for (int r = 0; r < 3; ++r) tokens.emplace_back(rng, weights, kLength);
    DeltaLayer batch(weights, run_delta_there, 3);
    while (batch.done(0) + batch.done(1) + batch.done(2) < 3 * kLength) {
      std::vector<std::int64_t> rows;
      for (std::size_t r = 0; r < 3; ++r) {
        const auto n = static_cast<std::int64_t>(rng() % 4 == 0 ? rng() % 2 : rng() % 150);
        rows.push_back(std::min(n, kLength - batch.done(r)));
      }
      batch.step({&tokens[0], &tokens[1], &tokens[2]}, rows);
    }
    for (std::size_t r = 0; r < 3; ++r) {
      const DeltaErrors errors = errors_of(batch, r, tokens[r]);
      EXPECT_LT(errors.worst_row, kChunkBound);
      EXPECT_LT(errors.all, kDeltaBound);
      EXPECT_LT(errors.state, kDeltaBound);
    }
  }
  const DeltaRuleProblem p = gdn(2, 1, 128, 128);
  const delta_test::DeltaWeights weights(rng, p);
  const DeltaSequence sequence(rng, weights, kLength);
  DeltaLayer cpu(weights, Device::cpu, 1), gpu(weights, run_delta_there, 1);
  for (DeltaLayer* layer : {&cpu, &gpu}) layer->step({&sequence}, {kLength});
  const auto got = gpu.state(0, kDeltaSlotTokens - 1), want = cpu.state(0, kDeltaSlotTokens - 1);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-2) << i;
}

// Outputs of a state that has just been forgotten are single products q^T k.
TEST(GpuDeltaRule, ExtremeGatesAndZeroRows) {
  std::mt19937 rng(test_seed(8));
  for (const DeltaRuleProblem& p : wide_problems()) {
    const delta_test::DeltaWeights weights(rng, p);
    for (const float f : {-1e4f, 1e4f}) {
      DeltaSequence sequence(rng, weights, 140);
      for (std::int64_t t = 0; t < 140; ++t) {
        if (t % 3 != 0) {
          std::fill_n(sequence.inputs().decay.row(t), p.gate_cols(), t % 2 == 0 ? f : -f);
        }
        if (t % 20 > 11) std::fill_n(sequence.inputs().x.row(t), p.channels(), 0.0f);
      }
      DeltaLayer layer(weights, run_delta_there, 1);
      layer.step({&sequence}, {sequence.tokens()});
      EXPECT_LT(errors_of(layer, 0, sequence).all, 2 * kDeltaBound) << name_of(p) << ", f " << f;
    }
  }
}

// Of a prompt in one step, outputs of the last tokens and the last state.
void check_long_sequence(std::int64_t tokens) {
  const auto seed = test_seed(20261201);
  std::printf("seed %u\n", seed);
  std::mt19937 rng(seed);
  for (const DeltaRuleProblem& p : {gdn(1, 1, 128, 128), kda(1, 128, 128)}) {
    const delta_test::DeltaWeights weights(rng, p);
    const DeltaErrors errors =
        errors_of_long_step(weights, DeltaSequence(rng, weights, tokens, 3), run_delta_there);
    std::printf("%s, %lld tokens: outputs %.1e, state %.1e\n", name_of(p).c_str(),
                static_cast<long long>(tokens), errors.all, errors.state);
    EXPECT_LT(errors.all, kDeltaBound) << name_of(p);
    EXPECT_LT(errors.state, kDeltaBound) << name_of(p);
  }
}

}  // namespace
}  // namespace lathe
