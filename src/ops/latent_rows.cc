#include "ops/latent_rows.h"

#include "base/check.h"
#include "base/rows.h"
#include "kernels/backend.h"
#include "ops/cache_write.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace lathe {
namespace {

Result<void> absorb(const OpsContext& ops, const LatentRows& op, const PoolView& pool,
                    RopeWrite write) {
  const Arena::Scope scope(*ops.tensors);
  const std::int64_t nope = op.absorbs->rows, q_head = op.q.cols / op.heads;
  const std::int64_t rope = q_head - op.qk_nope, width = nope + rope;
  const MutableRowsView absorbed = alloc_rows(*ops.tensors, op.q.rows, op.heads * width);
  if (rope > 0) {
    cast_rows(ops, {.x = cols_at(constant(op.q), op.qk_nope, rope),
                    .out = cols_at(absorbed, nope, rope),
                    .heads = op.heads,
                    .x_head = q_head,
                    .out_head = width});
  }
  head_matmul(ops, {constant(op.q), q_head, op.absorbs, absorbed, width});
  write.q = constant(absorbed);
  write.q_out = op.q_out;
  return rope_write(ops, write, pool);
}

}  // namespace

Result<void> prepare_latent(const OpsContext& ops, const LatentRows& op, const PoolView& pool) {
  LATHE_CHECK(op.q.dtype == DType::f32 && op.k.dtype == DType::f32, "rows of f32");
  const auto done = ops.backend->prepare_latent(ops, op, pool);
  if (!done) return done.error();
  if (*done) return {};
  const MutableRowsView latent = cols_at(op.k, 0, std::ssize(op.norm));
  rms_norm(ops, constant(latent), op.norm, op.eps, latent);
  if (op.norms_queries) rms_norm(ops, constant(op.q), {}, op.eps, op.q, op.heads);
  const RopeWrite write{.k = constant(op.k),
                        .positions = op.positions,
                        .slots = op.slots,
                        .table = op.table,
                        .scales = op.scales,
                        .tally = op.tally};
  if (op.absorbs != nullptr) return absorb(ops, op, pool, write);
  if (auto ok = rope_write(ops, write, pool); !ok) return ok;
  Result<void> ok;
  if (op.table != nullptr) {
    ok = rotate_rows(ops, *op.table, op.positions, op.q, op.heads, op.qk_nope);
  }
  if (ok && op.q_out.data != op.q.data) cast_rows(ops, constant(op.q), op.q_out);
  return ok;
}

}  // namespace lathe
