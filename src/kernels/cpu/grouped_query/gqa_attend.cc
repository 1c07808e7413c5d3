// Lays out a call's memory, runs its tasks, and folds their parts.
#include "kernels/cpu/grouped_query/gqa_attend.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>
#include <numbers>

#include "attn/check_args.h"
#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/grouped_query/gqa_plan.h"
#include "kernels/cpu/grouped_query/gqa_task.h"
#include "step/schedule.h"

namespace lathe {
namespace {

Result<void> check_dim(const char* field, std::int32_t dim) {
  if (dim % 16 == 0 && dim <= kGqaMaxHeadDim) return {};
  return Error{ErrorCode::unsupported, field,
               fmt::format("a multiple of 16 up to {}", kGqaMaxHeadDim), fmt::format("{}", dim),
               ""};
}

GqaJob make_job(const AttendArgs& args) {
  const AttentionProblem& p = args.problem;
  const KeySource& source = args.main;
  GqaJob job;
  job.args = &args;
  job.kv_heads = p.kv_heads;
  job.group = p.heads / p.kv_heads;
  job.head_dim = p.head_dim;
  job.v_head_dim = p.v_head_dim;
  if (source.pool) {
    const ConstPoolView& pool = *source.pool;
    const Part& key = *pool.layout.find(PartRole::key);
    const Part& value = *pool.layout.find(PartRole::value);
    job.format = key.dtype == DType::e4m3 ? KeyFormat::e4m3 : KeyFormat::bf16;
    job.bytes = pool.data;
    job.pages = pool.pages;
    job.page_stride = pool.page_stride;
    job.page_size = pool.page_size;
    job.slots = pool.slots();
    job.key_start = pool.layout.offset_of(key, pool.page_size, 0);
    job.key_step = pool.layout.plane_bytes(key.plane);
    job.value_start = pool.layout.offset_of(value, pool.page_size, 0);
    job.value_step = pool.layout.plane_bytes(value.plane);
  } else {
    job.format = source.compact.dtype == DType::f32 ? KeyFormat::f32 : KeyFormat::bf16;
    job.bytes = source.compact.data;
    job.pages = 1;
    job.page_size = std::numeric_limits<std::int32_t>::max();
    job.slots = source.compact.rows;
    job.key_step = bytes_of(source.compact.dtype, source.compact.row_stride);
    job.value_start = bytes_of(source.compact.dtype, std::int64_t{p.kv_heads} * p.head_dim);
    job.value_step = job.key_step;
  }
  // e4m3 keys and values are unpacked without their per-tensor scales. Those are applied to q and
  // to the output instead.
  job.query_scale = static_cast<float>(double{p.scale} * double{args.q_scale} *
                                       double{source.key_scale} * std::numbers::log2e);
  job.value_scale = source.value_scale;
  job.fold_keys = args.execution.batch_invariant.value_or(true)
                      ? kGqaFoldKeys
                      : std::numeric_limits<std::int64_t>::max();
  return job;
}

// A plan in memory is a GqaPlan, then its blocks from this byte on.
constexpr std::int64_t kBlocksAt = whole_lines(sizeof(GqaPlan));

std::int64_t plan_bytes(const AttendArgs& args) {
  return kBlocksAt + gqa_blocks_bound(args) * std::int64_t{sizeof(GqaBlock)};
}

const std::byte* write_plan(const AttendArgs& args, std::byte* to) {
  auto* blocks = reinterpret_cast<GqaBlock*>(to + kBlocksAt);
  new (to) GqaPlan(plan_gqa(args, thread_count(args.execution), blocks));
  return to;
}

const GqaBlock& block_of_task(const GqaBlock* blocks, std::int64_t count, std::int64_t task) {
  const GqaBlock* after =
      std::upper_bound(blocks, blocks + count, task,
                       [](std::int64_t t, const GqaBlock& b) { return t < b.first_task; });
  return *(after - 1);
}

}  // namespace

Result<void> cpu_prepare_gqa(const AttendArgs& args, Schedule& schedule) {
  write_plan(args, schedule.take_host(plan_bytes(args)));
  return {};
}

Result<void> cpu_attend_gqa(const AttendArgs& args) {
  if (Result<void> ok = check_gqa_args(args); !ok) return ok;
  const AttentionProblem& p = args.problem;
  if (Result<void> ok = check_dim("problem.head_dim", p.head_dim); !ok) return ok;
  if (Result<void> ok = check_dim("problem.v_head_dim", p.v_head_dim); !ok) return ok;
  if (args.q.rows == 0) return {};

  Scratch own;
  Scratch& scratch = args.execution.scratch != nullptr ? *args.execution.scratch : own;
  const std::int64_t threads = thread_count(args.execution);

  const std::byte* planned = args.schedule != nullptr
                                 ? args.schedule->host()
                                 : write_plan(args, scratch.outer().take(plan_bytes(args)));
  const auto& plan = *reinterpret_cast<const GqaPlan*>(planned);
  const auto* blocks = reinterpret_cast<const GqaBlock*>(planned + kBlocksAt);
  GqaJob job = make_job(args);
  job.block_rows = plan.block_rows;
  const std::int64_t worker_bytes = whole_lines(gqa_worker_bytes(job, plan.slice_heads));
  const std::int64_t partials = plan.parts * p.heads * plan.block_rows;
  const std::int64_t state_bytes = whole_lines(partials * std::int64_t{sizeof(SoftState)});
  const std::int64_t sum_bytes = whole_lines(partials * p.v_head_dim * 4);
  std::byte* memory = scratch.take(state_bytes + sum_bytes + threads * worker_bytes);
  job.part_states = reinterpret_cast<SoftState*>(memory);
  job.part_acc = reinterpret_cast<float*>(memory + state_bytes);
  std::byte* workers = memory + state_bytes + sum_bytes;

  // The slices of a run of keys are consecutive tasks, so they read nearby bytes at about the same
  // time.
  run_tasks(args.execution, plan.tasks * plan.slices, [&](std::int64_t task, int worker) {
    const GqaBlock& block = block_of_task(blocks, plan.blocks, task / plan.slices);
    const auto slice = static_cast<std::int32_t>(task % plan.slices);
    run_gqa_task(job, block, task / plan.slices - block.first_task, slice * plan.slice_heads,
                 std::min(p.kv_heads, (slice + 1) * plan.slice_heads),
                 workers + worker * worker_bytes);
  });
  if (plan.parts == 0) return {};
  run_tasks(args.execution, plan.blocks * p.heads, [&](std::int64_t task, int worker) {
    const GqaBlock& block = blocks[task / p.heads];
    if (block.parts == 1) return;
    combine_gqa_parts(job, block, static_cast<std::int32_t>(task % p.heads),
                      workers + worker * worker_bytes);
  });
  return {};
}

}  // namespace lathe
