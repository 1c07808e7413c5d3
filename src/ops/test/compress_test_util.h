// For tests of the compressor: a sequence of tokens with its entries in double precision, and a
// layer's memory, filled by steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <tuple>
#include <vector>

#include "base/test_scale.h"
#include "layout/codec/codec.h"
#include "ops/compress.h"
#include "ops/test/test_util.h"

namespace lathe::compress_test {

using ops_test::Context;
using ops_test::Rows;

struct Form {
  std::int32_t ratio, halves;
  CacheLayout layout;
  std::int32_t rope;
  bool hadamard;
  bool normed = true;

  std::int32_t dim() const { return static_cast<std::int32_t>(layout.row_elems()); }
  /// Relative error of an entry's bf16 or e4m3 elements.
  double rounding() const { return layout.kind() == LayoutKind::mla_bf16 ? 0.003 : 0.04; }
};

inline Form fine() {
  return {4, 2, CacheLayout(LayoutKind::mla_bf16, LayoutDims{.nope = 32, .rope = 16}), 16, false};
}
inline Form coarse() {
  return {128, 1, CacheLayout(LayoutKind::mla_bf16, LayoutDims{.nope = 32, .rope = 16}), 16, false};
}
inline Form index() {
  return {4, 2, CacheLayout(LayoutKind::index_fp8, LayoutDims{.dim = 32}), 16, true};
}

// Index keys of several tokens, with a table that rotates nothing.
inline Form shared_keys() {
  return {16, 1, CacheLayout(LayoutKind::index_fp8, LayoutDims{.dim = 48}), 2, false, false};
}

inline constexpr std::int32_t kSlotTokens = 256, kPageEntries = 16;

// One sequence of tokens, and its expected entries.
class Sequence {
 public:
  template <class Rng>
  Sequence(Rng& rng, const Form& form, std::int64_t tokens, float spread = 1)
      : form_(form),
        kv_(tokens, form.halves * form.dim()),
        gate_(tokens, form.halves * form.dim()),
        table_(
            *RopeTable::make({.dim = form.rope,
                              .theta = 160000,
                              .pairs = form.normed ? std::nullopt : std::optional<std::int32_t>(0)},
                             tokens)) {
    std::normal_distribution<float> normal;
    kv_.randomize(rng);
    gate_.randomize(rng);
    for (float& v : gate_.data) v *= spread;
    for (std::int64_t i = 0; i < form.ratio * gate_.cols; ++i) bias_.push_back(normal(rng));
    for (std::int64_t i = 0; form.normed && i < form.dim(); ++i)
      norm_.push_back(1 + 0.2f * normal(rng));
  }
  const Form& form() const { return form_; }
  std::int64_t tokens() const { return kv_.rows; }
  float* gates(std::int64_t t) { return gate_.row(t); }

  // Entry g before the norm: a mean weighted by e^z, in two passes.
  double mean(std::int64_t g, std::int64_t channel, std::int64_t end) const {
    std::vector<std::pair<double, double>> members;  // z, kv
    for (int half = 0; half < form_.halves; ++half) {
      const bool own = half == form_.halves - 1;
      const std::int64_t first = (own ? g : g - 1) * form_.ratio;
      for (std::int64_t p = std::max<std::int64_t>(0, first);
           p < std::min(end, first + form_.ratio); ++p) {
        const std::int64_t c = half * form_.dim() + channel;
        const float bias = bias_[static_cast<std::size_t>(p % form_.ratio * kv_.cols + c)];
        members.emplace_back(double{gate_.row(p)[c]} + bias, kv_.row(p)[c]);
      }
    }
    double most = -1e300, sum = 0, weights = 0;
    for (const auto& [z, v] : members) most = std::max(most, z);
    for (const auto& [z, v] : members) sum += v * std::exp(z - most), weights += std::exp(z - most);
    return sum / weights;
  }
  std::vector<double> entry(std::int64_t g) const {
    const auto dim = static_cast<std::size_t>(form_.dim());
    std::vector<double> e(dim);
    double squares = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      e[i] = mean(g, static_cast<std::int64_t>(i), tokens());
      squares += e[i] * e[i];
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-6);
    for (std::size_t i = 0; i < norm_.size(); ++i) e[i] *= factor * norm_[i];
    const auto first = LocalPos(static_cast<std::int32_t>(g * form_.ratio));
    for (std::size_t i = 0; form_.normed && i < static_cast<std::size_t>(form_.rope) / 2; ++i) {
      double& a = e[dim - static_cast<std::size_t>(form_.rope) + 2 * i];
      double& b = e[dim - static_cast<std::size_t>(form_.rope) + 2 * i + 1];
      const double c = table_.cos(first)[i], s = table_.sin(first)[i];
      std::tie(a, b) = std::pair(a * c - b * s, a * s + b * c);
    }
    if (!form_.hadamard) return e;
    std::vector<double> turned(dim);
    for (std::size_t i = 0; i < dim; ++i) {
      for (std::size_t j = 0; j < dim; ++j) {
        turned[i] += (__builtin_popcountll(i & j) % 2 == 0 ? 1 : -1) * e[j] / std::sqrt(dim);
      }
    }
    return turned;
  }

  Compress op(const StepView& step, const RowsView& kv, const RowsView& gate) const {
    return {.step = &step,
            .kv = kv,
            .gate = gate,
            .position_bias = bias_,
            .norm = norm_,
            .norm_eps = 1e-6f,
            .table = &table_,
            .ratio = form_.ratio,
            .halves = form_.halves,
            .dim = form_.dim(),
            .hadamard = form_.hadamard,
            .state = {}};
  }
  const Rows& kv() const { return kv_; }
  const Rows& gate() const { return gate_; }

 private:
  Form form_;
  Rows kv_, gate_;
  RopeTable table_;
  std::vector<float> bias_, norm_;
};

// A layer's pages and state slots, and steps over them for several sequences of one form.
class Layer {
 public:
  static constexpr std::int32_t kSlots = 4;  // state slots per request

  /// Runs an operator; all its memory is on the host, including pages and states.
  using Run = std::function<Result<void>(const Compress& op, const PoolView& pool)>;

  Layer(const Form& form, Run run, int requests, std::int64_t banks = 1)
      : form_(form),
        run_(std::move(run)),
        pages_(static_cast<std::int64_t>(requests) * kPages),
        bytes_(static_cast<std::size_t>(pages_ * form.layout.page_stride(kPageEntries)),
               std::byte{0xff}),
        bank_floats_(fold_floats(form.halves, form.dim())),
        banks_(banks),
        states_(static_cast<std::size_t>(kSlots * requests * banks * bank_floats_), std::nanf("")),
        done_(static_cast<std::size_t>(requests)),
        turns_(done_.size()) {}
  Layer(const Form& form, Device device, int requests, int threads = 1, std::int64_t banks = 1)
      : Layer(
            form,
            [context = std::make_shared<Context>(threads, device)](const Compress& op,
                                                                   const PoolView& pool) {
              return compress(context->ops, op, pool);
            },
            requests, banks) {}

  // The next rows[r] tokens of every sequence.
  void step(const std::vector<const Sequence*>& sequences, const std::vector<std::int64_t>& rows) {
    step(Phase::extend, sequences, rows);
  }
  // A verify step of one sequence: its next token, then drafts. The first `accepted` drafts are its
  // own tokens, the others are tokens of `wrong`.
  void verify(const Sequence& sequence, const Sequence& wrong, std::int64_t accepted,
              std::int64_t drafts) {
    const std::int64_t before = done_[0];
    step(Phase::verify, {&sequence}, {1 + drafts}, &wrong, before + 1 + accepted);
    done_[0] = before + 1 + accepted;
  }
  // Rows at positions >= first_wrong are tokens of `wrong`.
  void step(Phase phase, const std::vector<const Sequence*>& sequences,
            const std::vector<std::int64_t>& rows, const Sequence* wrong = nullptr,
            std::int64_t first_wrong = 0) {
    std::vector<LocalPos> positions;
    std::vector<Slot> slots;
    std::vector<std::int32_t> indptr = {0}, lens, request;
    std::vector<PageId> before, table;
    std::int64_t total = 0;
    for (const std::int64_t n : rows) total += n;
    Rows kv(total, form_.halves * form_.dim()), gate(total, kv.cols);
    const std::int64_t width = 8;
    std::int64_t t = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::int64_t cached = done_[r];
      for (std::int64_t p = cached; p < cached + rows[r]; ++p, ++t) {
        positions.emplace_back(static_cast<std::int32_t>(p));
        request.push_back(static_cast<std::int32_t>(r));
        const bool completes = (p + 1) % form_.ratio == 0;
        slots.push_back(completes ? slot_of_entry(r, p / form_.ratio) : Slot());
        const Sequence& from = wrong != nullptr && p >= first_wrong ? *wrong : *sequences[r];
        std::copy_n(from.kv().row(p), kv.cols, kv.row(t));
        std::copy_n(from.gate().row(p), kv.cols, gate.row(t));
      }
      done_[r] += rows[r];
      indptr.push_back(static_cast<std::int32_t>(t));
      lens.push_back(static_cast<std::int32_t>(done_[r]));
      before.push_back(cached > 0 ? slot(r, cached - 1) : PageId());
      std::vector<PageId> own(static_cast<std::size_t>(width));
      if (rows[r] > 0) {
        ++turns_[r];
        const std::int64_t first = phase == Phase::verify ? cached : done_[r] - 1;
        for (std::int64_t p = first; p < done_[r]; ++p) {
          own[static_cast<std::size_t>(p / kSlotTokens)] = slot(r, p);
        }
      }
      table.insert(table.end(), own.begin(), own.end());
    }
    StepView v;
    v.phase = phase;
    v.rows = total;
    v.requests = static_cast<std::int64_t>(rows.size());
    v.positions = positions;
    v.row_request = request;
    v.q_indptr = indptr;
    v.kv_lens = lens;
    v.compressed_out_slots = slots;
    v.state_before = before;
    v.state_table = {table.data(), v.requests, width};
    v.state_tokens = kSlotTokens;
    Compress op = sequences.front()->op(v, kv.view(), gate.view());
    op.state = {reinterpret_cast<std::byte*>(states_.data()),
                bank_floats_ * static_cast<std::int64_t>(sizeof(float)), banks_};
    const auto ok = run_(op, pool());
    ASSERT_TRUE(ok.ok()) << ok.error().message();
  }

  PoolView pool() {
    return PoolView(bytes_.data(), form_.layout, kPageEntries, static_cast<std::int32_t>(pages_));
  }
  std::vector<float> entry(std::size_t r, std::int64_t g) {
    std::vector<float> out(static_cast<std::size_t>(form_.dim()));
    const Slot at = slot_of_entry(r, g);
    const MutableRowsView row{reinterpret_cast<std::byte*>(out.data()), DType::f32, 1, form_.dim(),
                              form_.dim()};
    EXPECT_TRUE(gather_decode(pool(), std::span(&at, 1), row, {}).ok());
    return out;
  }
  // The state after all tokens so far, or after the one at `last`, a row of the last step.
  std::span<const float> state(std::size_t r) const { return state(r, done_[r] - 1); }
  std::span<const float> state(std::size_t r, std::int64_t last) const {
    return std::span(states_).subspan(
        static_cast<std::size_t>((slot(r, last).value * banks_ + last % banks_) * bank_floats_),
        static_cast<std::size_t>(bank_floats_));
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::int64_t done() const { return done_[0]; }

 private:
  static constexpr std::int32_t kPages = 16;
  // The state's slot after the token at `position`, after the last step.
  PageId slot(std::size_t r, std::int64_t position) const {
    const auto place = static_cast<std::int32_t>(position / kSlotTokens);
    return PageId(kSlots * static_cast<std::int32_t>(r) + 2 * (place % 2) + turns_[r] % 2);
  }
  // A request's pages are assigned from the back of the pool.
  static Slot slot_of_entry(std::size_t r, std::int64_t g) {
    const auto page = static_cast<std::int32_t>(r) * kPages + kPages - 1 -
                      static_cast<std::int32_t>(g / kPageEntries);
    return slot_of(PageId(page), kPageEntries, static_cast<std::int32_t>(g % kPageEntries));
  }

  Form form_;
  Run run_;
  std::int64_t pages_;
  std::vector<std::byte> bytes_;
  std::int64_t bank_floats_, banks_;
  std::vector<float> states_;
  std::vector<std::int64_t> done_;
  std::vector<std::int32_t> turns_;
};

inline void expect_entries(Layer& layer, std::size_t r, const Sequence& sequence, double bound) {
  for (std::int64_t g = 0; g < sequence.tokens() / sequence.form().ratio; ++g) {
    const std::vector<double> want = sequence.entry(g);
    const std::vector<float> got = layer.entry(r, g);
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      difference += (got[i] - want[i]) * (got[i] - want[i]);
      norm += want[i] * want[i];
    }
    EXPECT_LT(std::sqrt(difference / norm), bound) << "entry " << g;
  }
}

/// Rejected drafts, of any number and at any place in a group or a slot, have no effect: entries
/// (and with `to_the_bit` the states after every step) are the same as without them. make(banks)
/// makes a layer of one request.
template <class Rng, class Make>
void expect_rejected_rows_leave_nothing(Rng& rng, const Form& form, std::int64_t tokens,
                                        const Make& make, bool to_the_bit) {
  constexpr std::int64_t kBanks = 6;
  const Sequence sequence(rng, form, tokens), wrong(rng, form, tokens);
  Layer plain = make(1), drafted = make(kBanks);
  const std::int64_t prompt = 1 + static_cast<std::int64_t>(rng() % 4);
  plain.step({&sequence}, {prompt});
  drafted.step({&sequence}, {prompt});
  while (drafted.done() < tokens) {
    const std::int64_t room = std::min(kBanks - 1, tokens - 1 - drafted.done());
    const auto drafts = static_cast<std::int64_t>(rng() % static_cast<unsigned>(room + 1));
    const auto right = static_cast<std::int64_t>(rng() % static_cast<unsigned>(drafts + 1));
    drafted.verify(sequence, wrong, right, drafts);
    while (to_the_bit && plain.done() < drafted.done()) plain.step({&sequence}, {1});
    if (!to_the_bit) continue;
    ASSERT_EQ(
        std::memcmp(plain.state(0).data(), drafted.state(0).data(), plain.state(0).size_bytes()), 0)
        << drafted.done() << " tokens, " << right << " of " << drafts << " drafts accepted";
  }
  expect_entries(drafted, 0, sequence, form.rounding());
}

}  // namespace lathe::compress_test
