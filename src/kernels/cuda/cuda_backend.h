// CudaBackend: what make_cuda_backend() makes. Its functions are in backend.cc and backend_*.cc.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/backend.h"
#include "kernels/cuda/common/device.h"
#include "kernels/cuda/common/memory.h"
#include "kernels/cuda/common/stream.h"
#include "kernels/cuda/exchange/cuda_communicator.h"
#include "kernels/cuda/operators/held_operators.h"
#include "kernels/cuda/operators/quantized_x.h"
#include "kernels/cuda/operators/sampler.h"
#include "kernels/cuda/runtime/idle_times.h"
#include "kernels/cuda/runtime/rope_tables.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/cuda/runtime/step_start.h"
#include "kernels/cuda/runtime/stored_counts.h"
#include "kernels/cuda/runtime/upload.h"
#include "kernels/cuda/runtime/weight_memory.h"
#include "kernels/cuda/sm90/matmul/matmul.h"
#include "kernels/shared_experts.h"

namespace lathe::cuda {

class CudaBackend final : public Backend, public SharedExpertBackend, public ExchangeStream {
 public:
  CudaBackend(lathe::cuda::Device device, Stream stream, Mark step_end,
              const CudaBackendOptions& options)
      : device_(std::move(device)),
        stream_(std::move(stream)),
        step_end_(std::move(step_end)),
        communicator_(options.communicator),
        plain_products_(options.plain_products) {
    if (communicator_ != nullptr) communicator_->attach(*this);
  }

  cudaStream_t next() override;
  void keep(const Result<void>& result) override;

  lathe::Device device() const override { return lathe::Device::sm90; }
  const Memory& memory() const override { return kDeviceMemory; }
  DType activations() const override { return DType::bf16; }
  bool replays() const override { return true; }
  bool overlaps() const override { return true; }
  bool multiplies_in(MatmulPrecision precision) const override;

  // In backend_weights.cc
  void begin_prepare(const WeightSource& source) override;
  Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) override;
  Result<WeightStack> prepare(const WeightStack& weights, std::vector<OwnedBytes>& owned) override;
  Result<std::span<const float>> prepare(std::span<const float> vector,
                                         std::vector<OwnedBytes>& owned) override;
  Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                std::vector<OwnedBytes>& owned) override;
  Result<WeightStack> random_weights(const RandomWeights& weights,
                                     std::vector<OwnedBytes>& owned) override;
  Result<void> end_prepare() override;

  // In backend.cc
  Result<void> reserve(std::span<const Budget> budgets) override;
  Result<void> upload(const OpsContext&, std::span<const std::byte> from, std::byte* to) override;
  Result<void> download(const OpsContext&, const std::byte* from, std::span<std::byte> to) override;
  Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                            const StepView& step, PreparedStep& out) override;
  Result<std::span<const std::int32_t>> prepare_list(const OpsContext&,
                                                     std::span<const std::int32_t> list) override;
  Result<void> copy_tokens(const OpsContext&, std::span<const Slot> from, std::span<const Slot> to,
                           const PoolView& pool) override;
  Result<void> prepare_draws(const OpsContext&, std::span<const SampleArgs> rows,
                             std::span<std::optional<SampledToken>> out,
                             std::int64_t places) override;
  Result<void> replay(const OpsContext&, std::uint64_t key,
                      const std::function<Result<void>()>& work) override;
  void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override;
  Result<void> wait() override;
  void share_draws(const OpsContext& ops, std::int64_t rows) override;
  Result<void> begin_next_step() override;
  Result<void> measure_idle(bool on) override;
  std::vector<double> idle_seconds() override { return idle_.take(); }
  Result<void> take_drawn(const OpsContext&, std::span<const std::int32_t> tokens) override;

  // In backend_rows.cc
  void embed(const OpsContext&, const Embed& op) override;
  void gather_rows(const OpsContext&, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override;
  void rms_norm(const OpsContext&, const RmsNorm& op) override;
  void layer_norm(const OpsContext&, const LayerNorm& op) override;
  void gated_activation(const OpsContext&, const GatedActivation& op) override;
  void gate_rows(const OpsContext&, const GateRows& op) override;
  void add_rows(const OpsContext&, const RowsView& x, const MutableRowsView& out) override;
  void scale_rows(const OpsContext&, const ScaleRows& op) override;
  void cast_rows(const OpsContext&, const CastRows& op) override;
  void find_non_finite(const OpsContext&, const FindNonFinite& op) override;
  void hyper_mix(const OpsContext&, const HyperMix& op) override;
  void hyper_add(const OpsContext&, const HyperAdd& op) override;
  void hyper_head(const OpsContext&, const HyperHead& op) override;

  // In backend_products.cc
  void matmul(const OpsContext& ops, std::span<const Product> products) override;
  bool gated_matmul(const OpsContext& ops, const GatedProduct& op) override;
  void head_matmul(const OpsContext& ops, const HeadProducts& op) override;
  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override;
  bool expert_layer_with_shared(const OpsContext& ops, const ExpertLayer& op,
                                const SharedExperts& shared) override;

  // In backend_attention.cc
  Result<void> rope_write(const OpsContext&, const lathe::RopeWrite& op,
                          const PoolView& pool) override;
  Result<void> rotate_rows(const OpsContext&, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override;
  Result<void> unrotate_rows(const OpsContext&, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override;
  Result<bool> prepare_qkv(const OpsContext&, const QkvRows& op, const PoolView& pool) override;
  Result<bool> prepare_latent(const OpsContext& ops, const LatentRows& op,
                              const PoolView& pool) override;
  Result<std::optional<IndexCodes>> prepare_index(const OpsContext& ops, const IndexerRows& op,
                                                  const PoolView& pool) override;
  Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) override;
  Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) override;
  Result<void> write_rows(const OpsContext&, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override;
  Result<void> collect_counts() override { return counts_.collect(stream_); }
  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override;
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override;

 private:
  struct Recording {
    bool ran = false;
    std::optional<Graph> graph;
  };
  // Call it before every operator: starts the copies and schedules that it may read.
  Result<void> flush();
  Result<void> start_queued();  // the same but for what waits for a norm
  Result<void> make_ring();
  Result<void> reserve_arrivals();
  WeightMemory& weight_memory(std::vector<OwnedBytes>& owned);
  void multiply(std::span<MatmulCall> calls);
  void multiply_plain(const OpsContext& ops, const Product& p);
  void multiply_narrow(const OpsContext& ops, const Product& p);
  void permute(const Product& p, const MutableRowsView& out);
  QuantizedX quantize(const OpsContext& ops, const RowsView& x);
  HeadProducts narrowed(const OpsContext& ops, HeadProducts op);
  Result<void> rotate(const RopeTable& table, std::span<const LocalPos> positions,
                      const MutableRowsView& rows, std::int64_t heads, std::int64_t first,
                      RopeDirection direction);
  Execution execution(const OpsContext& ops);
  // Launches an operator of one kernel. An error names the kernel and `rows`.
  template <class Rows, class Params>
  void put(const char* kernel, const Rows& rows, cudaError_t (*launch)(const Params&, cudaStream_t),
           const Params& p) {
    keep(flush());
    const cudaError_t status = launch(p, stream_);
    if (status == cudaSuccess) return;
    keep(launch_result(status, {kernel, fmt::format("{} rows of {}", rows.rows, rows.cols),
                                std::source_location::current()}));
  }

  lathe::cuda::Device device_;
  Stream stream_;
  Mark step_end_;             // recorded after the step before begin_next_step()
  bool overlapping_ = false;  // wait() is for that step, which is still in flight
  IdleTimes idle_;
  CudaCommunicator* communicator_;
  bool plain_products_;
  Scratch scratch_{kDeviceMemory};
  std::optional<DeviceArray<std::uint32_t>> arrivals_;  // MatmulCall::arrivals, once reserved
  std::unique_ptr<UploadRing> ring_;                    // exists only while weights are prepared
  const WeightSource* source_ = nullptr;                // of the weights that are prepared; or null
  std::optional<WeightMemory> weight_memory_;           // of them
  Staging staging_;
  StepStart start_;
  HeldOperators held_;
  Sampler sampler_;
  StoredCounts counts_;
  RopeTables tables_;
  std::map<std::uint64_t, Recording> recordings_;  // by the key of replay(), combined with the keys
                                                   // of start_ and sampler_
  // The first error of an operator that returns nothing; wait() returns and clears it.
  Result<void> failed_;
};

}  // namespace lathe::cuda
