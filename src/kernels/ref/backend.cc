#include "kernels/ref/backend.h"

#include <cstring>

#include "base/rows.h"
#include "kernels/host_backend.h"
#include "kernels/ref/compress.h"
#include "kernels/ref/delta_rule.h"
#include "kernels/ref/hyper.h"
#include "kernels/ref/indexer.h"
#include "kernels/ref/linear.h"
#include "kernels/ref/moe.h"
#include "kernels/ref/rowwise.h"
#include "kernels/ref/sampling.h"
#include "layout/codec/codec.h"
#include "step/compact_attend.h"

namespace lathe {
namespace {

class RefBackend : public HostBackend {
 public:
  Device device() const override { return Device::ref; }
  bool multiplies_in(MatmulPrecision precision) const override {
    return precision == MatmulPrecision::f32;
  }

  void embed(const OpsContext&, const Embed& op) override { ref_embed(op); }
  void gather_rows(const OpsContext&, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override {
    ref_gather_rows(x, rows, out);
  }
  void rms_norm(const OpsContext&, const RmsNorm& op) override { ref_rms_norm(op); }
  void layer_norm(const OpsContext&, const LayerNorm& op) override { ref_layer_norm(op); }
  void gated_activation(const OpsContext&, const GatedActivation& op) override {
    ref_gated_activation(op);
  }
  void gate_rows(const OpsContext&, const GateRows& op) override { ref_gate_rows(op); }
  void add_rows(const OpsContext&, const RowsView& x, const MutableRowsView& out) override {
    ref_add_rows(x, out);
  }
  void scale_rows(const OpsContext&, const ScaleRows& op) override { ref_scale_rows(op); }
  void cast_rows(const OpsContext&, const CastRows& op) override {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      ref_cast_rows(cols_at(op.x, h * op.x_head, op.x.cols),
                    cols_at(op.out, h * op.out_head, op.out.cols));
    }
  }
  void find_non_finite(const OpsContext&, const FindNonFinite& op) override {
    ref_find_non_finite(op);
  }

  void matmul(const OpsContext&, std::span<const Product> products) override {
    ref_matmul(products);
  }
  void head_matmul(const OpsContext&, const HeadProducts& op) override { ref_head_matmul(op); }
  void expert_layer(const OpsContext&, const ExpertLayer& op) override { ref_expert_layer(op); }

  Result<void> rope_write(const OpsContext&, const RopeWrite& op, const PoolView& pool) override {
    return rope_quantize_write(op, pool);
  }
  Result<void> rotate_rows(const OpsContext&, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override {
    return apply_rope(table, positions, rows, heads, first, RopeDirection::forward);
  }
  Result<void> unrotate_rows(const OpsContext&, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override {
    return apply_rope(table, positions, rows, heads, first, RopeDirection::inverse);
  }
  Result<void> compress(const OpsContext&, const Compress& op, const PoolView& pool) override {
    return ref_compress(op, pool);
  }
  Result<void> delta_rule(const OpsContext&, const DeltaRule& op) override {
    ref_delta_rule(op);
    return {};
  }
  void hyper_mix(const OpsContext&, const HyperMix& op) override { ref_hyper_mix(op); }
  void hyper_add(const OpsContext&, const HyperAdd& op) override { ref_hyper_add(op); }
  void hyper_head(const OpsContext&, const HyperHead& op) override { ref_hyper_head(op); }
  Result<void> write_rows(const OpsContext&, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override {
    Result<void> ok = encode_rows(rows, slots, pool, scales);
    if (ok && tally != nullptr) tally->add(rows, slots, pool.layout, scales);
    return ok;
  }
  Result<void> select_keys(const OpsContext&, const SelectKeys& op) override {
    return ref_select_keys(op);
  }
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override {
    const auto kernel = kernel_of(*op.step->route);
    if (!kernel) return kernel.error();
    const AttendFn run = (*kernel)->attend;
    // With two sources, keys are read in place: compact bf16 rows would hold the same numbers.
    const bool compact = op.step->route->adapter && !op.plan->problem.two_sources();
    if (compact) return attend_compact(op, ops.execution, *ops.control, run);
    return run(attend_args(op, ops.execution));
  }
  void sample(const OpsContext&, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override {
    ref_sample(rows, out);
  }
};

}  // namespace

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<RefBackend>(); }

}  // namespace lathe
