// Base of backends in host memory. Weights stay in the file's mapping, and uploads and downloads
// are plain copies. There are no fused operators and no recordings, and steps do not overlap.
#pragma once

#include <cstring>

#include "base/check.h"
#include "kernels/backend.h"
#include "layout/pages/copy_records.h"

namespace lathe {

class HostBackend : public Backend {
 public:
  const Memory& memory() const override { return kHostMemory; }
  DType activations() const override { return DType::f32; }

  void begin_prepare(const WeightSource&) override {}
  Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>&) override {
    return weight;
  }
  Result<WeightStack> prepare(const WeightStack& weights, std::vector<OwnedBytes>&) override {
    return weights;
  }
  Result<std::span<const float>> prepare(std::span<const float> vector,
                                         std::vector<OwnedBytes>&) override {
    return vector;
  }
  Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                std::vector<OwnedBytes>&) override {
    return table;
  }
  Result<WeightStack> random_weights(const RandomWeights&, std::vector<OwnedBytes>&) override {
    LATHE_CHECK(false, "the host fills its own memory");
    return WeightStack();
  }
  Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                            const StepView& step, PreparedStep& out) override {
    out.view = step;
    return make_schedule(plan, pools, ops.execution, out.schedule, out.view);
  }
  Result<std::span<const std::int32_t>> prepare_list(const OpsContext&,
                                                     std::span<const std::int32_t> list) override {
    return list;
  }
  Result<void> copy_tokens(const OpsContext&, std::span<const Slot> from, std::span<const Slot> to,
                           const PoolView& pool) override {
    return copy_slots(pool, from, pool, to);
  }
  Result<void> upload(const OpsContext&, std::span<const std::byte> from, std::byte* to) override {
    std::memcpy(to, from.data(), from.size());
    return {};
  }
  Result<void> download(const OpsContext&, const std::byte* from,
                        std::span<std::byte> to) override {
    std::memcpy(to.data(), from, to.size());
    return {};
  }
  Result<void> wait() override { return {}; }

  Result<void> end_prepare() override { return {}; }
  Result<void> reserve(std::span<const Budget>) override { return {}; }
  Result<void> prepare_draws(const OpsContext&, std::span<const SampleArgs>,
                             std::span<std::optional<SampledToken>>, std::int64_t) override {
    return {};
  }
  bool replays() const override { return false; }
  Result<void> replay(const OpsContext&, std::uint64_t,
                      const std::function<Result<void>()>& work) override {
    return work();
  }
  bool gated_matmul(const OpsContext&, const GatedProduct&) override { return false; }
  Result<bool> prepare_qkv(const OpsContext&, const QkvRows&, const PoolView&) override {
    return false;
  }
  Result<bool> prepare_latent(const OpsContext&, const LatentRows&, const PoolView&) override {
    return false;
  }
  Result<std::optional<IndexCodes>> prepare_index(const OpsContext&, const IndexerRows&,
                                                  const PoolView&) override {
    return std::optional<IndexCodes>();
  }
  Result<void> collect_counts() override { return {}; }
  void share_draws(const OpsContext&, std::int64_t) override {}
  bool overlaps() const override { return false; }
  Result<void> begin_next_step() override { return {}; }
  Result<void> measure_idle(bool) override { return {}; }
  std::vector<double> idle_seconds() override { return {}; }
  Result<void> take_drawn(const OpsContext&, std::span<const std::int32_t>) override { return {}; }
};

}  // namespace lathe
