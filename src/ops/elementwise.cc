#include "ops/elementwise.h"

#include "base/check.h"
#include "kernels/cpu/rowwise.h"
#include "kernels/ref/rowwise.h"

namespace lathe {
namespace {

bool on_ref(const OpsContext& ops) {
  LATHE_CHECK(ops.device == Device::ref || ops.device == Device::cpu, "runs on ref and cpu");
  return ops.device == Device::ref;
}

void check_alike(const RowsView& a, const MutableRowsView& b) {
  LATHE_CHECK(a.dtype == DType::f32 && b.dtype == DType::f32, "rows are f32");
  LATHE_CHECK(a.rows == b.rows && a.cols == b.cols, "rows of one shape");
}

}  // namespace

void rms_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight, float eps,
              const MutableRowsView& out, std::int64_t heads) {
  check_alike(x, out);
  LATHE_CHECK(heads >= 1 && std::ssize(weight) * heads == x.cols, "weight covers a head");
  if (on_ref(ops)) return ref_rms_norm(x, weight, eps, out, heads);
  cpu_rms_norm(ops.execution, x, weight, eps, out, heads);
}

void layer_norm(const OpsContext& ops, const RowsView& x, std::span<const float> weight,
                std::span<const float> bias, float eps, const MutableRowsView& out) {
  check_alike(x, out);
  LATHE_CHECK(std::ssize(weight) == x.cols && std::ssize(bias) == x.cols, "weight and bias [n]");
  if (on_ref(ops)) return ref_layer_norm(x, weight, bias, eps, out);
  cpu_layer_norm(ops.execution, x, weight, bias, eps, out);
}

void silu_mul(const OpsContext& ops, const RowsView& gate, const RowsView& up,
              const MutableRowsView& out) {
  check_alike(gate, out);
  check_alike(up, out);
  if (on_ref(ops)) return ref_silu_mul(gate, up, out);
  cpu_silu_mul(ops.execution, gate, up, out);
}

void add_rows(const OpsContext& ops, const RowsView& x, const MutableRowsView& out) {
  check_alike(x, out);
  if (on_ref(ops)) return ref_add_rows(x, out);
  cpu_add_rows(ops.execution, x, out);
}

void embed(const OpsContext& ops, const WeightView& table, std::span<const std::int32_t> tokens,
           const MutableRowsView& out) {
  LATHE_CHECK(out.dtype == DType::f32 && out.rows == std::ssize(tokens) && out.cols == table.cols,
              "out is f32 [tokens, n]");
  LATHE_CHECK(table.scales == nullptr, "tables have no scales");
  for (const std::int32_t t : tokens) {
    LATHE_CHECK(t >= 0 && t < table.rows, "tokens lie in the table");
  }
  if (on_ref(ops)) return ref_embed(table, tokens, out);
  cpu_embed(ops.execution, table, tokens, out);
}

}  // namespace lathe
