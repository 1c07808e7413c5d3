// For tests of delta-rule layers: a layer's states, advanced by steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/test_scale.h"
#include "ops/delta_rule.h"
#include "ops/test/delta_sequence_test_util.h"

namespace lathe::delta_test {

using ops_test::Context;

/// Tokens of a state's slot.
inline constexpr std::int64_t kDeltaSlotTokens = 128;

/// A layer's state slots, and steps over them for several requests.
class DeltaLayer {
 public:
  static constexpr std::int64_t kPlaces = 8;  // most slots of a request in use

  /// Runs an operator; all its memory is on the host. `states`: all slots.
  using Run = std::function<Result<void>(const DeltaRule& op, std::span<std::byte> states)>;

  DeltaLayer(const DeltaWeights& weights, Run run, std::size_t requests, std::int64_t banks = 1)
      : weights_(&weights),
        run_(std::move(run)),
        banks_(banks),
        floats_(delta_state_bytes(weights.problem) / 4),
        states_(static_cast<std::size_t>(2 * kPlaces * std::int64_t(requests) * banks * floats_),
                std::nanf("")),
        done_(requests),
        turns_(requests),
        outputs_(requests) {}
  DeltaLayer(const DeltaWeights& weights, Device device, std::size_t requests, int threads = 1,
             std::int64_t banks = 1)
      : DeltaLayer(
            weights,
            [context = std::make_shared<Context>(threads, device)](
                const DeltaRule& op, std::span<std::byte>) { return delta_rule(context->ops, op); },
            requests, banks) {}

  /// The next rows[r] tokens of every request.
  void step(const std::vector<const DeltaSequence*>& sequences,
            const std::vector<std::int64_t>& rows) {
    step(Phase::extend, sequences, rows);
  }
  /// A verify step of one request: its next token, then drafts. The first `accepted` drafts are its
  /// own tokens, the others are tokens of `wrong`.
  void verify(const DeltaSequence& sequence, const DeltaSequence& wrong, std::int64_t accepted,
              std::int64_t drafts) {
    const std::int64_t end = done_[0] + 1 + accepted;
    step(Phase::verify, {&sequence}, {1 + drafts}, &wrong, end);
    done_[0] = end;
    outputs_[0].resize(static_cast<std::size_t>(end));
  }
  /// Rows at positions >= first_wrong are tokens of `wrong`. The step has a row of padding last.
  void step(Phase phase, const std::vector<const DeltaSequence*>& sequences,
            const std::vector<std::int64_t>& rows, const DeltaSequence* wrong = nullptr,
            std::int64_t first_wrong = 0) {
    const DeltaRuleProblem& p = weights_->problem;
    std::int64_t total = 1;
    for (const std::int64_t n : rows) total += n;
    DeltaInputs in(p, total);
    Rows out(total, p.value_cols());
    std::vector<LocalPos> positions;
    std::vector<std::int32_t> request, indptr = {0}, lens;
    std::vector<PageId> before, table;
    std::int64_t t = 0, most = 1;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t cached = done_[r];
      for (std::int64_t at = cached; at < cached + rows[r]; ++at, ++t) {
        const DeltaSequence& from = wrong != nullptr && at >= first_wrong ? *wrong : *sequences[r];
        DeltaInputs source = from.inputs();
        in.for_each(source, [&](Rows& to, Rows& tokens) {
          std::copy_n(tokens.row(at), to.cols, to.row(t));
        });
        positions.emplace_back(static_cast<std::int32_t>(at));
        request.push_back(static_cast<std::int32_t>(r));
      }
      before.push_back(cached > 0 ? slot(r, cached - 1) : PageId());
      if (rows[r] > 0 && ++steps_ % 3 != 0) ++turns_[r];  // every third step stays in the slot
      for (std::int64_t place = 0; place < kPlaces; ++place) {
        const bool used = rows[r] > 0 && place >= cached / kDeltaSlotTokens &&
                          place <= (cached + rows[r] - 1) / kDeltaSlotTokens;
        table.push_back(used ? slot(r, place * kDeltaSlotTokens) : PageId());
      }
      done_[r] += rows[r];
      most = std::max(most, rows[r]);
      indptr.push_back(static_cast<std::int32_t>(t));
      lens.push_back(static_cast<std::int32_t>(done_[r]));
    }
    positions.emplace_back(-1);
    request.push_back(static_cast<std::int32_t>(rows.size()));
    indptr.push_back(static_cast<std::int32_t>(total));
    lens.push_back(0);
    before.emplace_back();
    table.resize(table.size() + kPlaces);
    StepView v;
    v.phase = phase == Phase::extend && most == 1 ? Phase::decode : phase;
    v.rows = total;
    v.requests = std::ssize(lens);
    v.max_rows = most;
    v.positions = positions;
    v.row_request = request;
    v.q_indptr = indptr;
    v.kv_lens = lens;
    v.state_before = before;
    v.state_table = {table.data(), v.requests, kPlaces};
    v.state_tokens = kDeltaSlotTokens;
    const DeltaRule op{
        .step = &v,
        .problem = p,
        .x = in.x.view(),
        .decay = in.decay.view(),
        .beta = in.beta.view(),
        .gate = in.gate.view(),
        .conv = weights_->conv,
        .a_log = weights_->a_log,
        .dt_bias = weights_->dt_bias,
        .norm = weights_->norm,
        .norm_eps = 1e-6f,
        .out = out.out(),
        .state = {reinterpret_cast<std::byte*>(states_.data()), 4 * floats_, banks_}};
    const auto ok = run_(op, std::as_writable_bytes(std::span(states_)));
    ASSERT_TRUE(ok.ok()) << ok.error().message();
    t = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      for (std::int64_t i = 0; i < rows[r]; ++i, ++t) {
        outputs_[r].emplace_back(out.row(t), out.row(t) + out.cols);
      }
    }
  }

  /// Outputs of the request's tokens, [heads * dv] each.
  const std::vector<std::vector<float>>& outputs(std::size_t r) const { return outputs_[r]; }
  /// The state after the token at `last`: of the last step, or the last of a slot.
  std::span<const float> state(std::size_t r, std::int64_t last) const {
    return std::span(states_).subspan(
        static_cast<std::size_t>((slot(r, last).value * banks_ + last % banks_) * floats_),
        static_cast<std::size_t>(floats_));
  }
  std::span<const float> state(std::size_t r) const { return state(r, done_[r] - 1); }
  std::int64_t done(std::size_t r = 0) const { return done_[r]; }

 private:
  PageId slot(std::size_t r, std::int64_t position) const {
    const std::int64_t own = 2 * (position / kDeltaSlotTokens) + turns_[r] % 2;
    return PageId(static_cast<std::int32_t>(2 * kPlaces * static_cast<std::int64_t>(r) + own));
  }

  const DeltaWeights* weights_;
  Run run_;
  std::int64_t banks_, floats_;
  std::vector<float> states_;  // [slots, banks, floats_]
  std::vector<std::int64_t> done_;
  std::vector<std::int32_t> turns_;
  std::vector<std::vector<std::vector<float>>> outputs_;
  int steps_ = 0;
};

struct DeltaErrors {
  double worst_row = 0;  // |got - wanted| / |wanted| of a token's outputs, the largest
  double all = 0;        // of all outputs together
  double state = 0;      // of the last matrices
};

/// Compares a request's outputs and its last state with double precision.
inline DeltaErrors errors_of(const DeltaLayer& layer, std::size_t r,
                             const DeltaSequence& sequence) {
  DeltaErrors out;
  double difference = 0, norm = 0;  // squares, of all outputs
  const auto distance = [&](const auto& got, const auto& wanted, bool output) {
    double of_row = 0, row_norm = 0;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      of_row += (got[i] - wanted[i]) * (got[i] - wanted[i]);
      row_norm += wanted[i] * wanted[i];
    }
    if (output) difference += of_row, norm += row_norm;
    return of_row == 0 ? 0 : std::sqrt(of_row / row_norm);
  };
  sequence.for_outputs([&](std::int64_t t, const auto& wanted, const auto& state) {
    if (t >= layer.done(r)) return;
    const double error = distance(layer.outputs(r)[static_cast<std::size_t>(t)], wanted, true);
    out.worst_row = error > out.worst_row || std::isnan(error) ? error : out.worst_row;
    if (t == layer.done(r) - 1) out.state = distance(layer.state(r), state, false);
  });
  out.all = std::sqrt(difference / norm);
  return out;
}

/// Runs a whole sequence in one step with one slot, and compares with double precision: `all` is of
/// the outputs of the last 4096 tokens, where errors have added up, and `state` of the last one.
inline DeltaErrors errors_of_long_step(const DeltaWeights& weights, const DeltaSequence& sequence,
                                       const DeltaLayer::Run& run) {
  const DeltaRuleProblem& p = weights.problem;
  const std::int64_t tokens = sequence.tokens();
  DeltaInputs in = sequence.inputs();
  Rows out(tokens, p.value_cols());
  std::vector<float> state(static_cast<std::size_t>(delta_state_bytes(p) / 4));
  StepView v;
  v.phase = Phase::extend;
  v.rows = v.max_rows = tokens;
  v.requests = 1;
  std::vector<LocalPos> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.emplace_back(static_cast<std::int32_t>(t));
  const std::vector<std::int32_t> request(static_cast<std::size_t>(tokens)),
      indptr = {0, static_cast<std::int32_t>(tokens)}, lens = {static_cast<std::int32_t>(tokens)};
  const PageId before, slot(0);
  v.positions = positions;
  v.row_request = request;
  v.q_indptr = indptr;
  v.kv_lens = lens;
  v.state_before = std::span(&before, 1);
  v.state_table = {&slot, 1, 1};
  v.state_tokens = static_cast<std::int32_t>(tokens);
  const DeltaRule op{
      .step = &v,
      .problem = p,
      .x = in.x.view(),
      .decay = in.decay.view(),
      .beta = in.beta.view(),
      .gate = in.gate.view(),
      .conv = weights.conv,
      .a_log = weights.a_log,
      .dt_bias = weights.dt_bias,
      .norm = weights.norm,
      .norm_eps = 1e-6f,
      .out = out.out(),
      .state = {reinterpret_cast<std::byte*>(state.data()), delta_state_bytes(p), 1}};
  const auto ok = run(op, std::as_writable_bytes(std::span(state)));
  EXPECT_TRUE(ok.ok()) << (ok.ok() ? "" : ok.error().message());
  const auto add = [](std::array<double, 2>& sums, double got, double wanted) {
    sums[0] += (got - wanted) * (got - wanted);
    sums[1] += wanted * wanted;
  };
  std::array<double, 2> outputs{}, last{};  // squares of differences, and of wanted values
  sequence.for_outputs([&](std::int64_t t, const auto& wanted, const auto& wanted_state) {
    for (std::size_t i = 0; t >= tokens - 4096 && i < wanted.size(); ++i) {
      add(outputs, out.row(t)[i], wanted[i]);
    }
    for (std::size_t i = 0; t == tokens - 1 && i < wanted_state.size(); ++i) {
      add(last, state[i], wanted_state[i]);
    }
  });
  return {.all = std::sqrt(outputs[0] / outputs[1]), .state = std::sqrt(last[0] / last[1])};
}

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

}  // namespace lathe::delta_test
