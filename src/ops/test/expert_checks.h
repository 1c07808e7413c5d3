// Layers of experts on a GPU or an emulated one, against the oracle.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "base/threads.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/operators/expert_layer.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/moe.h"
#include "ops/moe.h"
#include "ops/test/test_util.h"

namespace lathe::ops_test {

/// How the router's biases distribute rows over experts.
enum class Routing {
  mixed,
  few,  // half of the experts get no row
  one,  // one expert gets all rows
};

struct ExpertForm {
  DType dtype;
  std::int32_t experts, top_k, groups, top_groups;
  RouterScoring scoring;
  bool turns;  // gate and up interleaved, with biases, as in gpt-oss
  std::int64_t n, ffn;
  // Experts by token id, as in DeepSeek V4's first layers.
  bool by_token = false;
  std::int32_t group_best = 2;
  // The router reads rows of its own and experts scale their weights, as in Gemma 4.
  bool gemma = false;
  bool weighs_inputs = false;
};

/// A form's weights and `rows` rows, on the host and on the device.
template <class Rng>
class ExpertCase {
 public:
  /// plain, precision: arguments of expert_layer().
  ExpertCase(Rng& rng, const ExpertForm& f, Routing routing, std::int64_t rows, bool plain = false,
             MatmulPrecision precision = MatmulPrecision::bf16)
      : plain_(plain),
        precision_(precision),
        router_(rng, DType::bf16, f.experts, f.n),
        x_(bf16_values(rng, rows, f.n)),
        before_(rows, f.n) {
    weights_.reserve(static_cast<std::size_t>(3 * f.experts));
    here_.gate = stack(rng, f, f.turns ? 2 * f.ffn : f.ffn, f.n);
    const bool up_first = rng() % 2 == 0;  // allocate `up` before `gate`
    if (!f.turns) here_.up = stack(rng, f, f.ffn, f.n);
    here_.down = stack(rng, f, f.n, f.ffn);
    before_.randomize(rng);
    const auto prepare = [&](const WeightStack& s) {
      return cuda::upload_weights(s, *ring_, stream_, memory_).value();
    };
    if (up_first) there_.up = prepare(here_.up);
    there_.gate = prepare(here_.gate);
    if (!up_first) there_.up = prepare(here_.up);
    there_.down = prepare(here_.down);
    if (f.turns) {
      gate_bias_ = normal(rng, f.experts * 2 * f.ffn, 1);
      down_bias_ = normal(rng, f.experts * f.n, 1);
      here_.gate_bias = gate_bias_;
      here_.down_bias = down_bias_;
      there_.gate_bias = list(gate_bias_);
      there_.down_bias = list(down_bias_);
    }
    op_ = {.x = x_.view(),
           .router = router_.view,
           .router_bias = {},
           .choice = {.scoring = f.scoring,
                      .experts = f.experts,
                      .top_k = f.top_k,
                      .groups = f.groups,
                      .top_groups = f.top_groups,
                      .group_best = f.group_best,
                      .bias = {},
                      .scale = 1.5f,
                      .weighs_inputs = f.weighs_inputs},
           .activation = {f.turns ? ActivationKind::clamped_swiglu : ActivationKind::silu},
           .experts = &here_,
           .out = {}};
    if (f.by_token) {
      op_.activation = {.kind = ActivationKind::clamped_silu, .limit = 0.5f};
      give_experts(rng);
    }
    on_gpu_ = op_;
    on_gpu_.x = bf16_rows(x_);
    on_gpu_.router = cuda::upload_weight(router_.view, *ring_, stream_, memory_).value();
    on_gpu_.experts = &there_;
    on_gpu_.choice.token_experts = list(token_experts_);
    on_gpu_.tokens = list(tokens_);
    if (f.gemma) {
      op_.activation = on_gpu_.activation = {.kind = ActivationKind::gelu_tanh};
      routed_ = bf16_values(rng, rows, f.n);
      expert_scale_ = normal(rng, f.experts, 1);
      op_.router_x = routed_.view();
      on_gpu_.router_x = bf16_rows(routed_);
      op_.choice.expert_scale = expert_scale_;
      on_gpu_.choice.expert_scale = list(expert_scale_);
    }
    route(rng, routing);
  }

  /// Gives the router other biases.
  void route(Rng& rng, Routing routing) {
    choice_bias_ = normal(rng, op_.choice.experts, 0.1f);
    for (std::int32_t e = 0; e < op_.choice.experts; ++e) {
      float& bias = choice_bias_[static_cast<std::size_t>(e)];
      if (routing == Routing::few && e % 2 == 0) bias -= 1e4f;
      if (routing == Routing::one && e == op_.choice.experts / 3) bias += 1e4f;
    }
    op_.choice.bias = choice_bias_;
    on_gpu_.choice.bias = list(choice_bias_);
  }

  /// Keeps experts first .. first + count - 1, as a rank that has no others.
  void keep_experts(std::int64_t first, std::int64_t count) {
    op_.first = on_gpu_.first = first;
    here_part_ = some_of(here_, first, count);
    there_part_ = some_of(there_, first, count);
    op_.experts = &here_part_;
    on_gpu_.experts = &there_part_;
  }
  void set_add(bool add) { op_.add = on_gpu_.add = add; }
  /// What the results are added to.
  const Rows& before() const { return before_; }

  /// The device's results for `count` rows from row `first` on.
  Rows run(std::int64_t first, std::int64_t count) {
    ExpertLayer op = on_gpu_;
    op.x = rows_at(op.x, first, count);
    if (op.router_x.data != nullptr) op.router_x = rows_at(op.router_x, first, count);
    if (!op.tokens.empty()) {
      op.tokens =
          op.tokens.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    }
    Rows out = before_.copy(first, count);
    op.out = out.out();
    op.out.data = bring(std::as_bytes(std::span(out.data)));
    const auto done = cuda::expert_layer(op, precision_, plain_, tensors_, stream_.get());
    EXPECT_TRUE(done.ok()) << done.error().message();
    EXPECT_TRUE(
        cuda::copy_to_host(op.out.data, std::as_writable_bytes(std::span(out.data)), stream_).ok());
    EXPECT_TRUE(stream_.wait().ok());
    return out;
  }
  Rows run() { return run(0, x_.rows); }
  /// The oracle's results for `rows`.
  Rows want(std::span<const std::int64_t> rows) {
    Rows out(std::ssize(rows), before_.cols);
    ThreadPool pool;
    pool.run(std::ssize(rows), [&](std::int64_t i, int) {
      const std::int64_t row = rows[static_cast<std::size_t>(i)];
      std::copy_n(before_.row(row), before_.cols, out.row(i));
      ExpertLayer op = op_;
      op.x = rows_at(op.x, row, 1);
      if (op.router_x.data != nullptr) op.router_x = rows_at(op.router_x, row, 1);
      if (!op.tokens.empty()) op.tokens = op.tokens.subspan(static_cast<std::size_t>(row), 1);
      op.out = out.out(i, 1);
      ref_expert_layer(op);
    });
    return out;
  }
  /// The CPU's results for all rows in the same precision.
  Rows want_of_cpu() {
    Context cpu(2);
    cpu.ops.precision = precision_;
    Rows out = before_.copy(0, x_.rows);
    ExpertLayer op = op_;
    op.out = out.out();
    lathe::expert_layer(cpu.ops, op);
    return out;
  }
  Rows want() {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(x_.rows));
    std::iota(rows.begin(), rows.end(), 0);
    return want(rows);
  }
  /// The experts that the oracle's router chooses for a row.
  std::vector<std::int32_t> experts_of(std::int64_t row) {
    Rows logits(1, op_.choice.experts);
    const Product product{rows_at(op_.of_router(), row, 1), op_.router, logits.out(), nullptr};
    ref_matmul({&product, 1});
    std::vector<std::int32_t> ids(static_cast<std::size_t>(op_.choice.top_k));
    std::vector<float> weights(ids.size());
    ref_route(op_.choice, logits.view(), ids, weights);
    return ids;
  }

 private:
  static WeightStack some_of(const WeightStack& w, std::int64_t first, std::int64_t count) {
    if (w.count() == 0) return w;
    WeightStack out = WeightStack::of(count, w.dtype, w.rows, w.cols);
    for (std::int64_t i = 0; i < count; ++i) out.set(i, w.at(first + i));
    return out;
  }
  static ExpertStacks some_of(const ExpertStacks& e, std::int64_t first, std::int64_t count) {
    const auto bias = [&](std::span<const float> all, std::int64_t each) {
      if (all.empty()) return all;
      return all.subspan(static_cast<std::size_t>(first * each),
                         static_cast<std::size_t>(count * each));
    };
    return {some_of(e.gate, first, count), some_of(e.up, first, count),
            some_of(e.down, first, count), bias(e.gate_bias, e.gate.rows),
            bias(e.down_bias, e.down.rows)};
  }
  WeightStack stack(Rng& rng, const ExpertForm& f, std::int64_t out, std::int64_t in) {
    WeightStack s = WeightStack::of(f.experts, f.dtype, out, in);
    for (std::int32_t e = 0; e < f.experts; ++e) {
      weights_.emplace_back(rng, f.dtype, out, in, f.dtype == DType::e4m3);
      s.set(e, weights_.back().view);
    }
    return s;
  }
  static std::vector<float> normal(Rng& rng, std::int64_t count, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> out(static_cast<std::size_t>(count));
    for (float& v : out) v = normal(rng);
    return out;
  }

  std::byte* bring(std::span<const std::byte> bytes) {
    return cuda::upload_bytes(bytes, *ring_, stream_, memory_).value();
  }
  template <class T>
  std::span<const T> list(const std::vector<T>& host) {
    return {reinterpret_cast<const T*>(bring(std::as_bytes(std::span(host)))), host.size()};
  }
  // Makes a table of distinct experts per token id, and the rows' token ids.
  void give_experts(Rng& rng) {
    constexpr std::int32_t kVocab = 50;
    std::vector<std::int32_t> all(static_cast<std::size_t>(op_.choice.experts));
    std::iota(all.begin(), all.end(), 0);
    for (std::int32_t t = 0; t < kVocab; ++t) {
      std::shuffle(all.begin(), all.end(), rng);
      token_experts_.insert(token_experts_.end(), all.begin(), all.begin() + op_.choice.top_k);
    }
    for (std::int64_t t = 0; t < x_.rows; ++t) {
      tokens_.push_back(static_cast<std::int32_t>(rng() % kVocab));
    }
    op_.choice.token_experts = token_experts_;
    op_.tokens = tokens_;
  }
  RowsView bf16_rows(const Rows& host) {
    std::vector<bf16> values;
    for (const float v : host.data) values.push_back(to_bf16(v));
    return {bring(std::as_bytes(std::span(values))), DType::bf16, host.rows, host.cols,
            host.stride};
  }

  bool plain_;
  MatmulPrecision precision_;
  cuda::Stream stream_ = std::move(cuda::Stream::make()).value();
  std::unique_ptr<cuda::UploadRing> ring_ = std::move(cuda::UploadRing::make()).value();
  Arena tensors_{cuda::kDeviceMemory};
  std::vector<OwnedBytes> owned_;
  cuda::WeightMemory memory_{owned_};
  std::vector<Weight> weights_;
  Weight router_;
  Rows x_, before_;
  Rows routed_{0, 0};
  std::vector<float> choice_bias_, gate_bias_, down_bias_, expert_scale_;
  std::vector<std::int32_t> token_experts_, tokens_;
  ExpertStacks here_, there_, here_part_, there_part_;
  ExpertLayer op_, on_gpu_;
};

/// Random cases. A failure prints the seed.
class RandomExperts : public ::testing::Test {
 protected:
  void TearDown() override {
    if (HasFailure()) std::printf("seed %u\n", seed);
  }
  unsigned seed = std::random_device()();
  std::mt19937 rng{seed};
};

}  // namespace lathe::ops_test
