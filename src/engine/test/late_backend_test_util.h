// LateBackend: a toy device that records operators and runs them in wait(), or a few at a time when
// a test asks. Code that reads a result too early, or changes what a step in flight still reads,
// gets different tokens.
//
// It is also a minimal device: memory, an entry for every operator, and wait(). Entries copy
// arguments from the host's stack (lists of GEMMs, an operator's arguments). Tensors, steps and
// sampling arguments stay in place until wait(). Work runs in the order of the calls.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/communicator.h"
#include "kernels/devices/all.h"
#include "kernels/test/forwarding_backend_test_util.h"

namespace lathe {

class LateBackend : public ForwardingBackend {
 public:
  /// overlaps: the next step of a FakeModel may start before wait(); its host data are copied.
  explicit LateBackend(Device device = Device::cpu, bool overlaps = false)
      : ForwardingBackend(std::move(*make_backend(device))), overlaps_(overlaps) {}

  using Work = std::function<Result<void>()>;
  void later(Work work) { queue_.push_back(std::move(work)); }
  std::size_t pending() const { return queue_.size(); }
  /// Runs the next `pieces` operators.
  void run_some(std::size_t pieces) {
    for (; pieces > 0 && !queue_.empty(); --pieces) {
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      if (previous_ && *previous_ > 0) --*previous_;
      const Result<void> done = work();
      if (!done && ok_) ok_ = done;
    }
  }
  /// The next wait() drops the second half of the work and returns an error.
  bool fail_next = false;
  /// Of the device's rank, for the recorded exchanges (LateCommunicator); null: it is alone.
  Communicator* communicator = nullptr;

  /// Records an exchange of the communicator.
  template <class Call>
  void exchange_later(const OpsContext& ops, Call call) {
    queue(ops, [this, call](Backend&, const OpsContext& o) { call(*communicator, o); });
  }

  Result<void> wait() override {
    const std::size_t end = std::exchange(previous_, std::nullopt).value_or(queue_.size());
    if (std::exchange(fail_next, false)) {
      run_some(end / 2);
      queue_.clear();
      return Error{ErrorCode::unsupported, "device", "a step that works", "a test's choice", ""};
    }
    run_some(end);
    return std::exchange(ok_, {});
  }

  bool overlaps() const override { return overlaps_; }
  Result<void> begin_next_step() override {
    LATHE_CHECK(!previous_, "two steps at a time");
    previous_ = queue_.size();
    return {};
  }
  Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                            const StepView& step, PreparedStep& out) override {
    if (auto ok = ForwardingBackend::prepare_step(ops, plan, pools, step, out); !ok) return ok;
    if (overlaps_) keep_arrays(out.view);
    return {};
  }
  Result<std::span<const std::int32_t>> prepare_list(const OpsContext&,
                                                     std::span<const std::int32_t> list) override {
    return overlaps_ ? keep(list) : list;
  }
  Result<void> copy_tokens(const OpsContext& ops, std::span<const Slot> from,
                           std::span<const Slot> to, const PoolView& pool) override {
    return try_later(ops, [=, from = copy(from), to = copy(to)](Backend& b, const OpsContext& o) {
      return b.copy_tokens(o, from, to, pool);
    });
  }
  Result<void> take_drawn(const OpsContext&, std::span<const std::int32_t> tokens) override {
    later([this, tokens]() -> Result<void> {
      for (const std::int32_t& token : tokens) {
        if (token > kFirstDraw) continue;
        const auto& drawn = drawn_[static_cast<std::size_t>(kFirstDraw - token)];
        const_cast<std::int32_t&>(token) = drawn ? drawn->token : -1;
      }
      return {};
    });
    return {};
  }

  Result<void> upload(const OpsContext&, std::span<const std::byte> from, std::byte* to) override {
    later([bytes = std::vector(from.begin(), from.end()), to]() -> Result<void> {
      std::copy(bytes.begin(), bytes.end(), to);
      return {};
    });
    return {};
  }
  Result<void> download(const OpsContext& ops, const std::byte* from,
                        std::span<std::byte> to) override {
    if (auto ok = wait(); !ok) return ok;
    return inner().download(ops, from, to);
  }

  void embed(const OpsContext& ops, const Embed& op) override {
    queue(ops, [op, tokens = copy(op.tokens)](Backend& b, const OpsContext& o) {
      Embed own = op;
      own.tokens = tokens;
      b.embed(o, own);
    });
  }
  void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override {
    queue(ops, [=, rows = copy(rows)](Backend& b, const OpsContext& o) {
      b.gather_rows(o, x, rows, out);
    });
  }
  void rms_norm(const OpsContext& ops, const RmsNorm& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.rms_norm(o, op); });
  }
  void layer_norm(const OpsContext& ops, const LayerNorm& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.layer_norm(o, op); });
  }
  void gated_activation(const OpsContext& ops, const GatedActivation& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.gated_activation(o, op); });
  }
  void gate_rows(const OpsContext& ops, const GateRows& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.gate_rows(o, op); });
  }
  void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.add_rows(o, x, out); });
  }
  void scale_rows(const OpsContext& ops, const ScaleRows& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.scale_rows(o, op); });
  }
  void cast_rows(const OpsContext& ops, const CastRows& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.cast_rows(o, op); });
  }
  void find_non_finite(const OpsContext& ops, const FindNonFinite& op) override {
    queue(ops, [op, rows = copy(op.rows)](Backend& b, const OpsContext& o) {
      FindNonFinite own = op;
      own.rows = rows;
      b.find_non_finite(o, own);
    });
  }
  void matmul(const OpsContext& ops, std::span<const Product> products) override {
    queue(ops,
          [products = copy(products)](Backend& b, const OpsContext& o) { b.matmul(o, products); });
  }
  void head_matmul(const OpsContext& ops, const HeadProducts& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.head_matmul(o, op); });
  }
  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.expert_layer(o, op); });
  }
  Result<void> rope_write(const OpsContext& ops, const RopeWrite& op,
                          const PoolView& pool) override {
    return try_later(ops,
                     [=](Backend& b, const OpsContext& o) { return b.rope_write(o, op, pool); });
  }
  Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override {
    return try_later(ops, [=, &table](Backend& b, const OpsContext& o) {
      return b.rotate_rows(o, table, positions, rows, heads, first);
    });
  }
  Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override {
    return try_later(ops, [=, &table](Backend& b, const OpsContext& o) {
      return b.unrotate_rows(o, table, positions, rows, heads, first);
    });
  }
  Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) override {
    return try_later(ops, [=](Backend& b, const OpsContext& o) { return b.compress(o, op, pool); });
  }
  Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) override {
    return try_later(ops, [=](Backend& b, const OpsContext& o) { return b.delta_rule(o, op); });
  }
  void hyper_mix(const OpsContext& ops, const HyperMix& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.hyper_mix(o, op); });
  }
  void hyper_add(const OpsContext& ops, const HyperAdd& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.hyper_add(o, op); });
  }
  void hyper_head(const OpsContext& ops, const HyperHead& op) override {
    queue(ops, [=](Backend& b, const OpsContext& o) { b.hyper_head(o, op); });
  }
  Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override {
    return try_later(ops, [=](Backend& b, const OpsContext& o) {
      return b.write_rows(o, rows, slots, pool, scales, tally);
    });
  }
  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override {
    return try_later(ops, [=](Backend& b, const OpsContext& o) { return b.select_keys(o, op); });
  }
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override {
    return try_later(ops, [=](Backend& b, const OpsContext& o) { return b.attend(o, op); });
  }
  void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override {
    if (!overlaps_) {
      queue(ops, [=](Backend& b, const OpsContext& o) { b.sample(o, rows, out); });
      return;
    }
    std::vector<SampleArgs> own(rows.begin(), rows.end());
    for (SampleArgs& args : own) {
      args.params = &params_.emplace_back(*args.params);
      args.prompt = keep(args.prompt);
      args.answer = keep(args.answer);
      args.ruled_out = keep(args.ruled_out);
      args.allowed = keep(args.allowed);
    }
    queue(ops, [this, own, out](Backend& b, const OpsContext& o) {
      b.sample(o, own, out);
      if (communicator == nullptr) {
        drawn_.assign(out.begin(), out.end());
        return;
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        const auto place = static_cast<std::size_t>(own[i].place);
        drawn_.resize(std::max(drawn_.size(), place + 1));
        drawn_[place] = out[i];
      }
    });
  }
  void share_draws(const OpsContext& ops, std::int64_t rows) override {
    queue(ops, [this, rows](Backend&, const OpsContext& o) {
      drawn_.resize(static_cast<std::size_t>(rows));
      std::vector<std::array<std::int32_t, 4>> records(drawn_.size());
      for (std::size_t i = 0; i < records.size(); ++i) {
        records[i][0] = drawn_[i] ? drawn_[i]->token : -1;
      }
      communicator->share_records(o, {reinterpret_cast<std::byte*>(records.data()), rows});
      for (std::size_t i = 0; i < records.size(); ++i) {
        drawn_[i].reset();
        if (records[i][0] >= 0) drawn_[i] = SampledToken{records[i][0], {}, {}};
      }
    });
  }

 private:
  template <class T>
  std::span<const T> keep(std::span<const T> list) {
    const auto bytes = std::as_bytes(list);
    const auto& own = kept_.emplace_back(bytes.begin(), bytes.end());
    return {reinterpret_cast<const T*>(own.data()), list.size()};
  }
  void keep_arrays(StepView& v) {
    const auto keep_table = [this](PageTableView& t) {
      t.data = keep(std::span(t.data, static_cast<std::size_t>(t.requests * t.width))).data();
    };
    v.positions = keep(v.positions);
    v.row_request = keep(v.row_request);
    v.row_lens = keep(v.row_lens);
    v.out_slots = keep(v.out_slots);
    v.q_indptr = keep(v.q_indptr);
    v.kv_lens = keep(v.kv_lens);
    keep_table(v.page_table);
    v.state_before = keep(v.state_before);
    keep_table(v.state_table);
  }
  template <class T>
  static std::vector<std::remove_const_t<T>> copy(std::span<T> list) {
    return {list.begin(), list.end()};
  }
  // The caller's arenas are unwound before the work runs, so it has arenas of its own.
  template <class Call>
  Result<void> try_later(const OpsContext& ops, Call call) {
    later([this, own = ops, call]() mutable -> Result<void> {
      own.backend = &inner();
      own.tensors = &tensors_;
      own.control = &control_;
      own.communicator = communicator;
      return call(inner(), own);
    });
    return {};
  }
  template <class Call>
  void queue(const OpsContext& ops, Call call) {
    (void)try_later(ops, [call](Backend& b, const OpsContext& o) -> Result<void> {
      call(b, o);
      return {};
    });
  }

  Arena tensors_, control_;
  std::deque<Work> queue_;
  bool overlaps_;
  std::optional<std::size_t> previous_;  // pieces of the step before begin_next_step()
  std::vector<std::optional<SampledToken>> drawn_;
  std::deque<std::vector<std::byte>> kept_;
  std::deque<SamplingParams> params_;
  Result<void> ok_;
};

/// Records exchanges in its device's queue. Waits of the host happen at once.
class LateCommunicator : public Communicator {
 public:
  /// Both must outlive it.
  LateCommunicator(LateBackend& late, Communicator& inner) : late_(late), inner_(inner) {
    late.communicator = &inner;
  }

  std::int32_t rank() const override { return inner_.rank(); }
  std::int32_t size() const override { return inner_.size(); }
  Result<void> barrier() override { return inner_.barrier(); }
  Result<void> agree(const Result<void>& mine, std::uint64_t key) override {
    return inner_.agree(mine, key);
  }
  Result<std::vector<void*>> publish(void* address) override { return inner_.publish(address); }
  Result<void> reserve(const ExchangeLimits& limits) override { return inner_.reserve(limits); }
  void abort(const Error& reason) override { inner_.abort(reason); }
  Result<void> status() const override { return inner_.status(); }
  Result<std::uint64_t> finished() override { return inner_.finished(); }
  MutableRowsView partials(const OpsContext& ops, std::int64_t rows, std::int64_t cols,
                           DType dtype) override {
    return inner_.partials(ops, rows, cols, dtype);
  }
  void sum(const OpsContext& ops, const SumRows& op) override {
    late_.exchange_later(ops, [op](Communicator& c, const OpsContext& o) { c.sum(o, op); });
  }
  void sum_norm(const OpsContext& ops, const SumNorm& op) override {
    late_.exchange_later(ops, [op](Communicator& c, const OpsContext& o) { c.sum_norm(o, op); });
  }
  void trade_columns(const OpsContext& ops, const TradeColumns& op) override {
    late_.exchange_later(ops,
                         [op](Communicator& c, const OpsContext& o) { c.trade_columns(o, op); });
  }
  void share_records(const OpsContext& ops, const ShareRecords& op) override {
    late_.exchange_later(ops,
                         [op](Communicator& c, const OpsContext& o) { c.share_records(o, op); });
  }

 private:
  LateBackend& late_;
  Communicator& inner_;
};

}  // namespace lathe
