// ForwardingBackend: passes every entry on to another backend. Test backends that change or watch a
// few entries derive from it.
//
// Every entry of Backend is pure virtual, so one that is not passed on here does not compile. With
// defaults, a wrapper that forgot a fused entry would test the separate steps and stay green.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/backend.h"

namespace lathe {

class ForwardingBackend : public Backend {
 public:
  /// `inner` must outlive it.
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}
  explicit ForwardingBackend(std::unique_ptr<Backend> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  Device device() const override { return inner_.device(); }
  const Memory& memory() const override { return inner_.memory(); }
  DType activations() const override { return inner_.activations(); }
  bool multiplies_in(MatmulPrecision precision) const override {
    return inner_.multiplies_in(precision);
  }
  void begin_prepare(const WeightSource& source) override { inner_.begin_prepare(source); }
  Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) override {
    return inner_.prepare(weight, owned);
  }
  Result<WeightStack> prepare(const WeightStack& weights, std::vector<OwnedBytes>& owned) override {
    return inner_.prepare(weights, owned);
  }
  Result<std::span<const float>> prepare(std::span<const float> vector,
                                         std::vector<OwnedBytes>& owned) override {
    return inner_.prepare(vector, owned);
  }
  Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                std::vector<OwnedBytes>& owned) override {
    return inner_.prepare(table, owned);
  }
  Result<WeightStack> random_weights(const RandomWeights& weights,
                                     std::vector<OwnedBytes>& owned) override {
    return inner_.random_weights(weights, owned);
  }
  Result<void> end_prepare() override { return inner_.end_prepare(); }
  Result<void> reserve(std::span<const Budget> budgets) override { return inner_.reserve(budgets); }
  Result<void> upload(const OpsContext& ops, std::span<const std::byte> from,
                      std::byte* to) override {
    return inner_.upload(ops, from, to);
  }
  Result<void> download(const OpsContext& ops, const std::byte* from,
                        std::span<std::byte> to) override {
    return inner_.download(ops, from, to);
  }
  Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                            const StepView& step, PreparedStep& out) override {
    return inner_.prepare_step(ops, plan, pools, step, out);
  }
  Result<std::span<const std::int32_t>> prepare_list(const OpsContext& ops,
                                                     std::span<const std::int32_t> list) override {
    return inner_.prepare_list(ops, list);
  }
  Result<void> copy_tokens(const OpsContext& ops, std::span<const Slot> from,
                           std::span<const Slot> to, const PoolView& pool) override {
    return inner_.copy_tokens(ops, from, to, pool);
  }
  Result<void> prepare_draws(const OpsContext& ops, std::span<const SampleArgs> rows,
                             std::span<std::optional<SampledToken>> out,
                             std::int64_t places) override {
    return inner_.prepare_draws(ops, rows, out, places);
  }
  bool replays() const override { return inner_.replays(); }
  Result<void> replay(const OpsContext& ops, std::uint64_t key,
                      const std::function<Result<void>()>& work) override {
    return inner_.replay(ops, key, work);
  }
  void embed(const OpsContext& ops, const Embed& op) override { inner_.embed(ops, op); }
  void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override {
    return inner_.gather_rows(ops, x, rows, out);
  }
  void rms_norm(const OpsContext& ops, const RmsNorm& op) override {
    return inner_.rms_norm(ops, op);
  }
  void layer_norm(const OpsContext& ops, const LayerNorm& op) override {
    return inner_.layer_norm(ops, op);
  }
  void gated_activation(const OpsContext& ops, const GatedActivation& op) override {
    return inner_.gated_activation(ops, op);
  }
  void gate_rows(const OpsContext& ops, const GateRows& op) override {
    return inner_.gate_rows(ops, op);
  }
  void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) override {
    return inner_.add_rows(ops, x, out);
  }
  void scale_rows(const OpsContext& ops, const ScaleRows& op) override {
    return inner_.scale_rows(ops, op);
  }
  void cast_rows(const OpsContext& ops, const CastRows& op) override {
    return inner_.cast_rows(ops, op);
  }
  void find_non_finite(const OpsContext& ops, const FindNonFinite& op) override {
    return inner_.find_non_finite(ops, op);
  }
  void matmul(const OpsContext& ops, std::span<const Product> products) override {
    return inner_.matmul(ops, products);
  }
  bool gated_matmul(const OpsContext& ops, const GatedProduct& op) override {
    return inner_.gated_matmul(ops, op);
  }
  void head_matmul(const OpsContext& ops, const HeadProducts& op) override {
    return inner_.head_matmul(ops, op);
  }
  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override {
    return inner_.expert_layer(ops, op);
  }
  Result<void> rope_write(const OpsContext& ops, const RopeWrite& op,
                          const PoolView& pool) override {
    return inner_.rope_write(ops, op, pool);
  }
  Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override {
    return inner_.rotate_rows(ops, table, positions, rows, heads, first);
  }
  Result<bool> prepare_qkv(const OpsContext& ops, const QkvRows& op,
                           const PoolView& pool) override {
    return inner_.prepare_qkv(ops, op, pool);
  }
  Result<bool> prepare_latent(const OpsContext& ops, const LatentRows& op,
                              const PoolView& pool) override {
    return inner_.prepare_latent(ops, op, pool);
  }
  Result<std::optional<IndexCodes>> prepare_index(const OpsContext& ops, const IndexerRows& op,
                                                  const PoolView& pool) override {
    return inner_.prepare_index(ops, op, pool);
  }
  Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override {
    return inner_.unrotate_rows(ops, table, positions, rows, heads, first);
  }
  Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) override {
    return inner_.compress(ops, op, pool);
  }
  Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) override {
    return inner_.delta_rule(ops, op);
  }
  void hyper_mix(const OpsContext& ops, const HyperMix& op) override {
    return inner_.hyper_mix(ops, op);
  }
  void hyper_add(const OpsContext& ops, const HyperAdd& op) override {
    return inner_.hyper_add(ops, op);
  }
  void hyper_head(const OpsContext& ops, const HyperHead& op) override {
    return inner_.hyper_head(ops, op);
  }
  Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override {
    return inner_.write_rows(ops, rows, slots, pool, scales, tally);
  }
  Result<void> collect_counts() override { return inner_.collect_counts(); }
  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override {
    return inner_.select_keys(ops, op);
  }
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override {
    return inner_.attend(ops, op);
  }
  void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override {
    return inner_.sample(ops, rows, out);
  }
  Result<void> wait() override { return inner_.wait(); }
  void share_draws(const OpsContext& ops, std::int64_t rows) override {
    inner_.share_draws(ops, rows);
  }
  bool overlaps() const override { return inner_.overlaps(); }
  Result<void> begin_next_step() override { return inner_.begin_next_step(); }
  Result<void> measure_idle(bool on) override { return inner_.measure_idle(on); }
  std::vector<double> idle_seconds() override { return inner_.idle_seconds(); }
  Result<void> take_drawn(const OpsContext& ops, std::span<const std::int32_t> tokens) override {
    return inner_.take_drawn(ops, tokens);
  }

 protected:
  Backend& inner() { return inner_; }

 private:
  std::unique_ptr<Backend> owned_;
  Backend& inner_;
};

}  // namespace lathe
