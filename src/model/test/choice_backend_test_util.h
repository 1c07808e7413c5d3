// ChoiceBackend: records a backend's discrete choices (indexers' keys, routers' experts), or
// replays recorded ones. Devices that round differently may break a near tie differently, after
// which their numbers diverge; with the same choices they can be compared row by row.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/float_formats.h"
#include "kernels/ref/moe.h"
#include "kernels/test/forwarding_backend_test_util.h"

namespace lathe {

/// A device's choices, in order of calls.
struct Choices {
  std::deque<std::vector<std::int32_t>> keys;  // [rows * k] slots, -1 for none
  std::deque<std::vector<float>> routed;       // [rows * n] the router's inputs

  // On replay: the number of choices, and of those that the replaying device would make
  // differently.
  std::int64_t made = 0, others = 0;
};

class ChoiceBackend : public ForwardingBackend {
 public:
  enum class Mode { writes, takes, takes_keys };
  /// `inner` and `choices` must outlive it.
  ChoiceBackend(Backend& inner, Mode mode, Choices& choices)
      : ForwardingBackend(inner), mode_(mode), choices_(choices) {}

  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override {
    if (auto ok = inner().select_keys(ops, op); !ok) return ok;
    std::vector<std::int32_t> own = read(ops, op.slots);
    if (mode_ == Mode::writes) {
      choices_.keys.push_back(std::move(own));
      return {};
    }
    const std::vector<std::int32_t> wanted = take(choices_.keys);
    if (wanted.size() != own.size()) ADD_FAILURE() << "steps differ";
    const std::size_t width = own.size() / static_cast<std::size_t>(op.step->rows);
    for (std::size_t row = 0; row < own.size(); row += width) {
      count(std::span(wanted).subspan(row, width), std::span(own).subspan(row, width));
    }
    return inner().upload(ops, std::as_bytes(std::span(wanted)),
                          reinterpret_cast<std::byte*>(op.slots.data()));
  }

  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override {
    const bool given = !op.choice.token_experts.empty();  // by the token: no choice
    if (mode_ == Mode::takes_keys || given) return inner().expert_layer(ops, op);
    const std::vector<float> own = read_rows(ops, op.of_router());
    if (mode_ == Mode::writes) {
      choices_.routed.push_back(own);
      inner().expert_layer(ops, op);
      return;
    }
    const std::vector<float> theirs = take(choices_.routed);
    if (theirs.size() != own.size()) ADD_FAILURE() << "steps differ";
    const auto cols = static_cast<std::size_t>(op.x.cols);
    for (std::int64_t row = 0; row < op.x.rows; ++row) {
      const std::size_t at = static_cast<std::size_t>(row) * cols;
      const auto ids = route(op, std::span(theirs).subspan(at, cols));
      count(ids, route(op, std::span(own).subspan(at, cols)));
      // A bias changes the choice, not the weights.
      constexpr float kSurely = 1e4f;
      std::vector<float> bias(static_cast<std::size_t>(op.choice.experts), 0.0f);
      for (const std::int32_t id : ids) bias[static_cast<std::size_t>(id)] = kSurely;
      ExpertLayer one = op;
      one.choice.bias = bias;
      one.choice.groups = one.choice.top_groups = 1;
      one.x = rows_at(op.x, row, 1);
      if (op.router_x.data != nullptr) one.router_x = rows_at(op.router_x, row, 1);
      one.out = rows_at(op.out, row, 1);
      inner().expert_layer(ops, one);
    }
  }

 private:
  template <class T>
  static T take(std::deque<T>& from) {
    if (from.empty()) {
      ADD_FAILURE() << "more calls than were recorded";
      return {};
    }
    T out = std::move(from.front());
    from.pop_front();
    return out;
  }
  std::vector<std::int32_t> read(const OpsContext& ops, std::span<const std::int32_t> list) {
    std::vector<std::int32_t> out(list.size());
    EXPECT_TRUE(inner()
                    .download(ops, reinterpret_cast<const std::byte*>(list.data()),
                              std::as_writable_bytes(std::span(out)))
                    .ok());
    return out;
  }
  std::vector<float> read_rows(const OpsContext& ops, const RowsView& x) {
    std::vector<float> out;
    std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(x.dtype, x.cols)));
    for (std::int64_t row = 0; row < x.rows; ++row) {
      EXPECT_TRUE(inner().download(ops, x.row(row), bytes).ok());
      for (std::int64_t col = 0; col < x.cols; ++col) {
        out.push_back(x.dtype == DType::bf16
                          ? to_f32(reinterpret_cast<const bf16*>(bytes.data())[col])
                          : reinterpret_cast<const float*>(bytes.data())[col]);
      }
    }
    return out;
  }
  // The router's choice for a row; its weights are on the host.
  static std::vector<std::int32_t> route(const ExpertLayer& op, std::span<const float> x) {
    const std::int32_t experts = op.choice.experts;
    std::vector<float> logits;
    for (std::int32_t e = 0; e < experts; ++e) {
      double sum = op.router_bias.empty() ? 0 : op.router_bias[static_cast<std::size_t>(e)];
      for (std::int64_t i = 0; i < op.router.cols; ++i) {
        const std::int64_t at = e * op.router.cols + i;
        const double w = op.router.dtype == DType::bf16
                             ? to_f32(reinterpret_cast<const bf16*>(op.router.data)[at])
                             : reinterpret_cast<const float*>(op.router.data)[at];
        sum += w * x[static_cast<std::size_t>(i)];
      }
      logits.push_back(static_cast<float>(sum));
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(op.choice.top_k));
    std::vector<float> weights(ids.size());
    ref_route(op.choice,
              {reinterpret_cast<const std::byte*>(logits.data()), DType::f32, 1, experts, experts},
              ids, weights);
    return ids;
  }
  void count(std::span<const std::int32_t> wanted, std::span<const std::int32_t> own) {
    for (const std::int32_t i : wanted) {
      if (i < 0) continue;
      ++choices_.made;
      choices_.others += std::find(own.begin(), own.end(), i) == own.end();
    }
  }

  Mode mode_;
  Choices& choices_;
};

}  // namespace lathe
