// Backend: a device's memory and its operators, one virtual function per operator.
//
// The functions of ops/ have the same names. They document what an operator computes, check the
// arguments, and call the backend; nothing else calls a backend's operators. docs/operators.md
// lists all operators with their argument structs.
//
// Tensors that an operator reads or writes are in memory(), and so are the arrays of a StepView and
// lists of tokens and rows. Lists of GEMMs and other control data are on the host. An operator that
// returns nothing cannot fail for a reason that its caller could see. A device that fails
// asynchronously reports it from the next function that returns a Result.
//
// Every function is pure virtual, so that a wrapper that forgets to pass one on does not compile
// (kernels/test/forwarding_backend_test_util.h). HostBackend has the simple version of the optional
// ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "attn/machine.h"
#include "base/memory.h"
#include "base/result.h"
#include "kernels/compress.h"
#include "kernels/context.h"
#include "kernels/delta_rule.h"
#include "kernels/hyper.h"
#include "kernels/operators.h"
#include "kernels/random_weights.h"
#include "kernels/sampling.h"
#include "kernels/weight_source.h"
#include "layout/rope/rope_write.h"
#include "step/attend_op.h"

namespace lathe {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  virtual const Memory& memory() const = 0;
  /// The dtype of tensors that only GEMMs read, which are the outputs of norms, gated activations
  /// and attention. The residual stream and all other tensors are f32.
  virtual DType activations() const = 0;
  /// Whether GEMMs can be computed in this precision.
  virtual bool multiplies_in(MatmulPrecision precision) const = 0;

  // ---- Loading a model

  /// Until end_prepare(), weights in host memory are copied by `source`, and their addresses need
  /// not be readable. Without this call, and on backends that need no copies, the addresses are
  /// read. `source` lives until end_prepare().
  virtual void begin_prepare(const WeightSource& source) = 0;
  /// Converts a weight in host memory to the form that this backend's kernels read: either the same
  /// bytes, or a copy in memory() that is appended to `owned`. Called once, when a model is loaded.
  /// Errors: out of memory.
  virtual Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) = 0;
  virtual Result<WeightStack> prepare(const WeightStack& weights,
                                      std::vector<OwnedBytes>& owned) = 0;
  /// The same for a vector (a norm's weight) or a table of integers.
  virtual Result<std::span<const float>> prepare(std::span<const float> vector,
                                                 std::vector<OwnedBytes>& owned) = 0;
  virtual Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                        std::vector<OwnedBytes>& owned) = 0;

  /// Makes random weights in memory() and appends their memory to `owned`. They need no prepare().
  /// Not for host memory. Errors: out of memory.
  virtual Result<WeightStack> random_weights(const RandomWeights& weights,
                                             std::vector<OwnedBytes>& owned) = 0;

  /// Call after the last prepare(): waits for the copies and frees the buffers that they needed.
  /// Errors: a copy that failed.
  virtual Result<void> end_prepare() = 0;

  /// Allocates what the plan's budgets name for steps and for attention's partial results, so that
  /// no step allocates. Errors: out of memory.
  virtual Result<void> reserve(std::span<const Budget> budgets) = 0;

  // ---- Preparing a step

  /// Copies between the host and memory(), in order with the operators before and after. `from` may
  /// be reused once upload() returns; `to` may be read once download() returns.
  virtual Result<void> upload(const OpsContext& ops, std::span<const std::byte> from,
                              std::byte* to) = 0;
  virtual Result<void> download(const OpsContext& ops, const std::byte* from,
                                std::span<std::byte> to) = 0;

  /// Copies a step's arrays to memory() and makes the schedule of its route's kernel
  /// (make_schedule()). `pools`: the pools of any layer that shares the step. Until the step's
  /// results have been collected, `step` must not change and `out` must not move. Errors: out of
  /// memory.
  virtual Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                                    const StepView& step, PreparedStep& out) = 0;
  /// Copies one of the step's lists (its tokens, for example) to memory(). Errors: out of memory.
  virtual Result<std::span<const std::int32_t>> prepare_list(
      const OpsContext& ops, std::span<const std::int32_t> list) = 0;

  /// Copies token from[i] of a pool to to[i], in every plane and in order with the operators before
  /// and after. Lists are from prepare_list(). No slot is twice in `to`, or in both. Errors: the
  /// device's.
  virtual Result<void> copy_tokens(const OpsContext& ops, std::span<const Slot> from,
                                   std::span<const Slot> to, const PoolView& pool) = 0;

  /// Copies sample()'s inputs to the device ahead of time; without it, sample() does so itself.
  /// Inside replay(), sample() always samples `places` rows, so one recording also serves smaller
  /// batches. Errors: out of memory.
  virtual Result<void> prepare_draws(const OpsContext& ops, std::span<const SampleArgs> rows,
                                     std::span<std::optional<SampledToken>> out,
                                     std::int64_t places) = 0;

  /// Whether replay() records and replays. If so, a step's arrays must keep their sizes.
  virtual bool replays() const = 0;
  /// Runs `work` and may record it (as a CUDA graph). If `work` ran under this key before, replays
  /// those operators instead, on the same addresses and their current contents; a replay does not
  /// read host memory again. `work` may call operators only: prepare steps, lists and sampling
  /// before. Errors: the errors of `work`, or of the recording.
  virtual Result<void> replay(const OpsContext& ops, std::uint64_t key,
                              const std::function<Result<void>()>& work) = 0;

  // ---- Rows (ops/elementwise.h; cast_rows: ops/cache_write.h)

  virtual void embed(const OpsContext& ops, const Embed& op) = 0;
  virtual void gather_rows(const OpsContext& ops, const RowsView& x,
                           std::span<const std::int32_t> rows, const MutableRowsView& out) = 0;
  virtual void rms_norm(const OpsContext& ops, const RmsNorm& op) = 0;
  virtual void layer_norm(const OpsContext& ops, const LayerNorm& op) = 0;
  virtual void gated_activation(const OpsContext& ops, const GatedActivation& op) = 0;
  virtual void gate_rows(const OpsContext& ops, const GateRows& op) = 0;
  virtual void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) = 0;
  virtual void scale_rows(const OpsContext& ops, const ScaleRows& op) = 0;
  virtual void cast_rows(const OpsContext& ops, const CastRows& op) = 0;
  virtual void find_non_finite(const OpsContext& ops, const FindNonFinite& op) = 0;

  // ---- GEMMs (ops/matmul.h) and experts (ops/moe.h)

  /// The list of GEMMs with a given x must be the same in every step, but for those that are
  /// `alone`. A device may cut GEMMs that share x together, and then a row's bits depend on the
  /// list.
  virtual void matmul(const OpsContext& ops, std::span<const Product> products) = 0;
  /// Returns false if the device has no fused kernel for `op`; ops/ then runs the separate steps.
  virtual bool gated_matmul(const OpsContext& ops, const GatedProduct& op) = 0;
  virtual void head_matmul(const OpsContext& ops, const HeadProducts& op) = 0;
  virtual void expert_layer(const OpsContext& ops, const ExpertLayer& op) = 0;

  // ---- RoPE and the cache (ops/cache_write.h, ops/qkv.h, ops/latent_rows.h, ops/indexer_rows.h)

  virtual Result<void> rope_write(const OpsContext& ops, const RopeWrite& op,
                                  const PoolView& pool) = 0;
  virtual Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                                   std::span<const LocalPos> positions, const MutableRowsView& rows,
                                   std::int64_t heads, std::int64_t first) = 0;
  /// Returns false if the device has no fused kernel for `op`; ops/ then runs the separate steps.
  virtual Result<bool> prepare_qkv(const OpsContext& ops, const QkvRows& op,
                                   const PoolView& pool) = 0;
  /// Like prepare_qkv(): false if the device has no fused kernel; ops/ then runs the separate
  /// steps.
  virtual Result<bool> prepare_latent(const OpsContext& ops, const LatentRows& op,
                                      const PoolView& pool) = 0;
  /// Nothing if the device has no fused kernel; ops/ then runs the separate steps. Codes are
  /// allocated in ops.tensors.
  virtual Result<std::optional<IndexCodes>> prepare_index(const OpsContext& ops,
                                                          const IndexerRows& op,
                                                          const PoolView& pool) = 0;
  virtual Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                                     std::span<const LocalPos> positions,
                                     const MutableRowsView& rows, std::int64_t heads,
                                     std::int64_t first) = 0;
  virtual Result<void> write_rows(const OpsContext& ops, const RowsView& rows,
                                  std::span<const Slot> slots, const PoolView& pool,
                                  const TensorScales& scales, ValueTally* tally) = 0;
  /// Adds what the writes above have counted on the device so far to their tallies, which must
  /// still exist. Waits for the device. In host memory tallies are updated as rows are written.
  virtual Result<void> collect_counts() = 0;

  // ---- Compressed entries (ops/compress.h), delta-rule layers (ops/delta_rule.h),
  // hyper-connections (ops/hyper.h)

  virtual Result<void> compress(const OpsContext& ops, const Compress& op,
                                const PoolView& pool) = 0;
  virtual Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) = 0;
  virtual void hyper_mix(const OpsContext& ops, const HyperMix& op) = 0;
  virtual void hyper_add(const OpsContext& ops, const HyperAdd& op) = 0;
  virtual void hyper_head(const OpsContext& ops, const HyperHead& op) = 0;

  // ---- Attention (ops/indexer.h, ops/attend.h)

  virtual Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) = 0;
  virtual Result<void> attend(const OpsContext& ops, const AttendOp& op) = 0;

  // ---- Sampling (ops/sampling.h)

  /// Samples out[i], on the host, from rows[i]. What `rows` point to, and `out`, must stay until
  /// wait(), after which `out` holds the tokens.
  virtual void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
                      std::span<std::optional<SampledToken>> out) = 0;

  /// With a communicator: copies what every rank's last sample() sampled to all ranks, so that
  /// take_drawn() finds each of the `rows` by its SampleArgs::place. Nothing for a backend whose
  /// steps do not overlap.
  virtual void share_draws(const OpsContext& ops, std::int64_t rows) = 0;

  // ---- Steps in flight

  /// Waits for all calls so far; if begin_next_step() was called since the last wait(), only for
  /// the calls before it. Errors: what the device has reported since the last wait().
  virtual Result<void> wait() = 0;

  /// Whether the next step's calls may follow before wait(). Such a backend copies host data that
  /// it is given: arrays, lists and sampling arguments.
  virtual bool overlaps() const = 0;
  /// The calls that follow belong to the next step. The next wait() waits for the step before it.
  /// Precondition: overlaps(), and no other step is in flight.
  virtual Result<void> begin_next_step() = 0;
  /// Turns idle-time measurement on or off: how long the device waits between two replayed steps.
  /// Costs the device and the host a few microseconds per step. Precondition: no step is in flight.
  /// Errors: what the device reports.
  virtual Result<void> measure_idle(bool on) = 0;
  /// Idle times in seconds, one per step since the last call.
  virtual std::vector<double> idle_seconds() = 0;
  /// Replaces every token_of_draw() in a list from prepare_list() by the token that was sampled, or
  /// by -1 if a logit was not finite.
  virtual Result<void> take_drawn(const OpsContext& ops, std::span<const std::int32_t> tokens) = 0;
};

}  // namespace lathe
