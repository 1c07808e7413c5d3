#include "kernels/cpu/backend.h"

#include "base/rows.h"
#include "kernels/cpu/cache_write.h"
#include "kernels/cpu/compress/compress.h"
#include "kernels/cpu/delta/delta_rule.h"
#include "kernels/cpu/hyper/hyper.h"
#include "kernels/cpu/indexer/indexer.h"
#include "kernels/cpu/latent/latent_gather.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/cpu/matmul/matmul_bf16.h"
#include "kernels/cpu/matmul/matmul_int8.h"
#include "kernels/cpu/matmul/matmul_rounded.h"
#include "kernels/cpu/moe/moe.h"
#include "kernels/cpu/rowwise/rowwise.h"
#include "kernels/cpu/sampling/sampling.h"
#include "kernels/host_backend.h"
#include "step/compact_attend.h"

namespace lathe {
namespace {

class CpuBackend : public HostBackend {
 public:
  Device device() const override { return Device::cpu; }
  bool multiplies_in(MatmulPrecision precision) const override {
    if (precision == MatmulPrecision::int8) return cpu_has_int8_dot();
    return precision != MatmulPrecision::bf16 || cpu_has_bf16_dot();
  }

  void embed(const OpsContext& ops, const Embed& op) override { cpu_embed(ops.execution, op); }
  void gather_rows(const OpsContext& ops, const RowsView& x, std::span<const std::int32_t> rows,
                   const MutableRowsView& out) override {
    cpu_gather_rows(ops.execution, x, rows, out);
  }
  void rms_norm(const OpsContext& ops, const RmsNorm& op) override {
    cpu_rms_norm(ops.execution, op);
  }
  void layer_norm(const OpsContext& ops, const LayerNorm& op) override {
    cpu_layer_norm(ops.execution, op);
  }
  void gated_activation(const OpsContext& ops, const GatedActivation& op) override {
    cpu_gated_activation(ops.execution, op);
  }
  void gate_rows(const OpsContext& ops, const GateRows& op) override {
    cpu_gate_rows(ops.execution, op);
  }
  void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) override {
    cpu_add_rows(ops.execution, x, out);
  }
  void scale_rows(const OpsContext& ops, const ScaleRows& op) override {
    cpu_scale_rows(ops.execution, op);
  }
  void cast_rows(const OpsContext& ops, const CastRows& op) override {
    for (std::int64_t h = 0; h < op.heads; ++h) {
      cpu_cast_rows(ops.execution, cols_at(op.x, h * op.x_head, op.x.cols),
                    cols_at(op.out, h * op.out_head, op.out.cols));
    }
  }
  void find_non_finite(const OpsContext& ops, const FindNonFinite& op) override {
    cpu_find_non_finite(ops.execution, op);
  }

  void matmul(const OpsContext& ops, std::span<const Product> products) override {
    cpu_matmul(ops.execution, *ops.tensors, ops.precision, products);
  }
  void head_matmul(const OpsContext& ops, const HeadProducts& op) override {
    const Arena::Scope scope(*ops.control);
    const std::int64_t heads = op.w->count();
    auto* products = ops.control->take_array<Product>(heads);
    for (std::int64_t h = 0; h < heads; ++h) products[h] = product_of(op, h);
    const std::span<const Product> all(products, static_cast<std::size_t>(heads));
    const bool fp8 = rounds_to_e4m3(ops.precision, DType::e4m3);
    if (!fp8) return matmul(ops, all);
    cpu_matmul_rounded(ops.execution, *ops.tensors, MatmulPrecision::bf16, all);
  }
  void expert_layer(const OpsContext& ops, const ExpertLayer& op) override {
    cpu_expert_layer(ops, op);
  }

  Result<void> rope_write(const OpsContext& ops, const RopeWrite& op,
                          const PoolView& pool) override {
    return cpu_rope_write(ops.execution, op, pool);
  }
  Result<void> rotate_rows(const OpsContext& ops, const RopeTable& table,
                           std::span<const LocalPos> positions, const MutableRowsView& rows,
                           std::int64_t heads, std::int64_t first) override {
    return cpu_rotate_rows(ops.execution, table, positions, rows, heads, first,
                           RopeDirection::forward);
  }
  Result<void> unrotate_rows(const OpsContext& ops, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first) override {
    return cpu_rotate_rows(ops.execution, table, positions, rows, heads, first,
                           RopeDirection::inverse);
  }
  Result<void> compress(const OpsContext& ops, const Compress& op, const PoolView& pool) override {
    return cpu_compress(ops.execution, *ops.control, op, pool);
  }
  Result<void> delta_rule(const OpsContext& ops, const DeltaRule& op) override {
    cpu_delta_rule(ops.execution, *ops.control, op);
    return {};
  }
  void hyper_mix(const OpsContext& ops, const HyperMix& op) override {
    cpu_hyper_mix(ops.execution, op);
  }
  void hyper_add(const OpsContext& ops, const HyperAdd& op) override {
    cpu_hyper_add(ops.execution, op);
  }
  void hyper_head(const OpsContext& ops, const HyperHead& op) override {
    cpu_hyper_head(ops.execution, op);
  }
  Result<void> write_rows(const OpsContext& ops, const RowsView& rows, std::span<const Slot> slots,
                          const PoolView& pool, const TensorScales& scales,
                          ValueTally* tally) override {
    return cpu_write_rows(ops.execution, rows, slots, pool, scales, tally);
  }
  Result<void> select_keys(const OpsContext& ops, const SelectKeys& op) override {
    return cpu_select_keys(ops.execution, *ops.tensors, op);
  }
  Result<void> attend(const OpsContext& ops, const AttendOp& op) override {
    const auto kernel = kernel_of(*op.step->route);
    if (!kernel) return kernel.error();
    const AttendFn run = (*kernel)->attend;
    if (!op.step->route->adapter) return run(attend_args(op, ops.execution));
    if (op.plan->problem.kind == ProblemKind::grouped_query) {
      return attend_compact(op, ops.execution, *ops.control, run);
    }
    const std::span workspace(reinterpret_cast<std::uint16_t*>(op.gather_workspace.data()),
                              op.gather_workspace.size() / sizeof(std::uint16_t));
    return cpu_gather_attend(attend_args(op, ops.execution), workspace);
  }
  void sample(const OpsContext& ops, std::span<const SampleArgs> rows,
              std::span<std::optional<SampledToken>> out) override {
    cpu_sample(ops.execution, rows, out);
  }
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace lathe
