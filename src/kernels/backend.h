// Backend: a device as operators see it, that is its memory and an entry for every operator. What
// an entry computes is documented in ops/, which checks arguments before it calls one; only ops/
// may call them.
//
// Tensors that an entry reads or writes lie in memory(), arrays of a StepView and lists of tokens
// and rows included; product lists and other control data lie on the host. Entries that return
// nothing cannot fail for a reason that their caller could see; a device that fails asynchronously
// reports it from the next entry that returns a Result.
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
#include "kernels/hyper.h"
#include "kernels/operators.h"
#include "kernels/random_weights.h"
#include "kernels/sampling.h"
#include "layout/rope/rope_write.h"
#include "step/attend_op.h"

namespace lathe {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual Device device() const = 0;
  virtual const Memory& memory() const = 0;
  /// The type of tensors that only products read: norms, gated activations and attention write it.
  /// The residual stream and everything else is f32.
  virtual DType activations() const = 0;
  /// Whether products can be computed in this precision.
  virtual bool multiplies_in(MatmulPrecision precision) const = 0;

  /// A weight of host memory as this backend's kernels read it, made once when a model is loaded:
  /// the same bytes, or a copy in memory() that goes to the end of `owned`.
  /// Errors: out of memory.
  virtual Result<WeightView> prepare(const WeightView& weight, std::vector<OwnedBytes>& owned) = 0;
  virtual Result<WeightStack> prepare(const WeightStack& weights,
                                      std::vector<OwnedBytes>& owned) = 0;
  /// A vector of host memory, such as a norm's weight, or a table of numbers, likewise.
  virtual Result<std::span<const float>> prepare(std::span<const float> vector,
                                                 std::vector<OwnedBytes>& owned) = 0;
  virtual Result<std::span<const std::int32_t>> prepare(std::span<const std::int32_t> table,
                                                        std::vector<OwnedBytes>& owned) = 0;

  /// Random weights in memory() of a device, at the end of `owned`. They need no prepare(). Errors:
  /// out of memory.
  virtual Result<WeightStack> random_weights(const RandomWeights& weights,
                                             std::vector<OwnedBytes>& owned) = 0;

  /// The model's weights have all been prepared: frees what that took besides them. Errors: any of
  /// its copies.
  virtual Result<void> end_prepare() = 0;

  /// Takes what a plan's budgets name for steps and for attention's partials, so that no step has
  /// to allocate. Errors: out of memory.
  virtual Result<void> reserve(std::span<const Budget> budgets) = 0;

  /// Copies between the host and memory(), in the order of the operators around them. `from` may be
  /// reused after an upload; what a download wrote may be read once it has returned.
  virtual Result<void> upload(const OpsContext& ops, std::span<const std::byte> from,
                              std::byte* to) = 0;
  virtual Result<void> download(const OpsContext& ops, const std::byte* from,
                                std::span<std::byte> to) = 0;

  /// Brings the arrays of a step to memory() and makes the schedule of its route's kernel
  /// (make_schedule()). `pools` are those of any layer which shares the step. `step` stays as it
  /// is until the step's results are collected, `out` where it is. Errors: no memory.
  virtual Result<void> prepare_step(const OpsContext& ops, const Plan& plan, const KeyPools& pools,
                                    const StepView& step, PreparedStep& out) = 0;
  /// Brings a list of a step, such as its tokens, likewise.
  virtual Result<std::span<const std::int32_t>> prepare_list(
      const OpsContext& ops, std::span<const std::int32_t> list) = 0;

  /// Brings what sample() of these rows reads of the host, if it is not to bring it itself. Inside
  /// `work` of replay() it draws from `places` rows, so that a recording serves fewer as well.
  virtual Result<void> prepare_draws(const OpsContext& ops, std::span<const SampleArgs> rows,
                                     std::span<std::optional<SampledToken>> out,
                                     std::int64_t places) = 0;

  /// Whether replay() records and replays, for which a step's arrays keep their sizes.
  virtual bool replays() const = 0;
  /// Runs `work`, which calls operators and nothing else of the backend; or, if it ran under this
  /// key before, replays those operators on the same addresses and their present contents. A replay
  /// does not read the host's memory again. Steps, lists and draws are prepared before it.
  virtual Result<void> replay(const OpsContext& ops, std::uint64_t key,
                              const std::function<Result<void>()>& work) = 0;

  virtual void embed(const OpsContext& ops, const WeightView& table,
                     std::span<const std::int32_t> tokens, float scale,
                     const MutableRowsView& out) = 0;
  virtual void gather_rows(const OpsContext& ops, const RowsView& x,
                           std::span<const std::int32_t> rows, const MutableRowsView& out) = 0;
  virtual void rms_norm(const OpsContext& ops, const RmsNorm& op) = 0;
  virtual void layer_norm(const OpsContext& ops, const LayerNorm& op) = 0;
  virtual void gated_activation(const OpsContext& ops, const GatedActivation& op) = 0;
  virtual void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) = 0;
  virtual void cast_rows(const OpsContext& ops, const CastRows& op) = 0;
  virtual void find_non_finite(const OpsContext& ops, const FindNonFinite& op) = 0;

  /// The list for a row's products is the same in every step: a device may cut products that share
  /// x together, so that a row's bits depend on the list.
  virtual void matmul(const OpsContext& ops, std::span<const Product> products) = 0;
  /// Returns whether the device has done it in one; else ops/ does it by parts.
  virtual bool gated_matmul(const OpsContext& ops, const GatedProduct& op) = 0;
  virtual void head_matmul(const OpsContext& ops, const HeadProducts& op) = 0;
  virtual void expert_layer(const OpsContext& ops, const ExpertLayer& op) = 0;

  virtual Result<void> rope_write(const OpsContext& ops, const RopeWrite& op,
                                  const PoolView& pool) = 0;
  virtual Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                                   std::span<const LocalPos> positions, const MutableRowsView& rows,
                                   std::int64_t heads, std::int64_t first) = 0;
  /// Returns whether the device has done it in one; else ops/ does it by parts.
  virtual Result<bool> prepare_qkv(const OpsContext& ops, const QkvRows& op,
                                   const PoolView& pool) = 0;
  /// The same.
  virtual Result<bool> prepare_latent(const OpsContext& ops, const LatentRows& op,
                                      const PoolView& pool) = 0;
  virtual Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                                     std::span<const LocalPos> positions,
                                     const MutableRowsView& rows, std::int64_t heads,
                                     std::int64_t first) = 0;
  virtual Result<void> compress(const OpsContext& ops, const Compress& op,
                                const PoolView& pool) = 0;
  virtual void hyper_mix(const OpsContext& ops, const HyperMix& op) = 0;
  virtual void hyper_add(const OpsContext& ops, const HyperAdd& op) = 0;
  virtual void hyper_head(const OpsContext& ops, const HyperHead& op) = 0;
  virtual Result<void> write_rows(const OpsContext& ops, const RowsView& rows,
                                  std::span<const Slot> slots, const PoolView& pool,
                                  const TensorScales& scales, ValueTally* tally) = 0;
  /// Adds what write_rows() and rope_write() have counted on the device so far to their tallies,
  /// which must still exist. Waits. On a host they are counted as the rows are written.
  virtual Result<void> collect_counts() = 0;
  virtual Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) = 0;
  virtual Result<void> attend(const OpsContext& ops, const AttendOp& op) = 0;

  /// out[i], on the host, is drawn from rows[i]. What rows point to stays as it is until wait(),
  /// which is when `out` holds the tokens.
  virtual void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
                      std::span<std::optional<SampledToken>> out) = 0;

  /// Returns once all that was called before is done, or what was called before begin_next_step().
  /// Errors: the device's, since the last wait().
  virtual Result<void> wait() = 0;

  /// Whether the calls of a step may follow those of another before wait(). Such a backend copies
  /// what it is given on the host: arrays, lists and sampling arguments.
  virtual bool overlaps() const = 0;
  /// What follows belongs to another step than all before. The next wait() is for that step alone.
  /// Precondition: overlaps(); the step before is the only one not waited for.
  virtual Result<void> begin_next_step() = 0;
  /// Measures from here on, or no longer, how long the device has nothing to do before a step of
  /// replay() that follows another so, which costs it and the host a few microseconds. No step is
  /// in flight. Errors: the device's.
  virtual Result<void> measure_idle(bool on) = 0;
  /// Those times in seconds, of the steps since the last call.
  virtual std::vector<double> idle_seconds() = 0;
  /// Replaces every token_of_draw() in a list of prepare_list() by the token that is drawn there;
  /// -1 where a logit is not finite.
  virtual Result<void> take_drawn(const OpsContext& ops, std::span<const std::int32_t> tokens) = 0;
};

}  // namespace lathe
