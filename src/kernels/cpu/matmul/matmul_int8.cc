// Rounds x once for all outputs, cuts the GEMMs into tasks and runs them on the threads.
#include "kernels/cpu/matmul/matmul_int8.h"

#include <algorithm>

#include "base/check.h"
#include "base/integers.h"
#include "kernels/cpu/common/dot_targets.h"
#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/common/unroll.h"
#include "kernels/cpu/matmul/matmul_slice.h"
#include "kernels/cpu/matmul/stream_level.h"

#ifndef LATHE_INT8_DOT

namespace lathe {

bool cpu_has_int8_dot() { return false; }
bool is_int8_dot_weight(DType) { return false; }
void cpu_matmul_int8(const Execution&, Arena&, std::span<const Product>) {
  LATHE_CHECK(false, "not on this CPU");
}

}  // namespace lathe

#else

LATHE_TARGET_BEGIN(LATHE_INT8_DOT)
#include "kernels/cpu/matmul/int8_tiles-inl.h"
#include "kernels/cpu/matmul/int8_u4-inl.h"
LATHE_TARGET_END

LATHE_TARGET_BEGIN(LATHE_INT8_VBMI)
#include "kernels/cpu/matmul/int8_e4m3-inl.h"
LATHE_TARGET_END

namespace lathe {
namespace int8_matmul {
namespace {

// With fewer multiply-adds, starting other threads costs more than it saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

// Columns of x that share a scale.
std::int64_t group_size(const WeightView& w) {
  return w.dtype == DType::u4 ? w.groups.size : kWeightBlock;
}

Int8Rows take_rows(Arena& arena, const Product& p) {
  const std::int64_t m = p.x.rows, k = p.w.cols, size = group_size(p.w), groups = ceil_div(k, size);
  return {m,
          k,
          size,
          p.w.dtype == DType::u4,
          arena.take_array<std::int8_t>(m * round_up(k, kChunk)),
          groups,
          arena.take_array<float>(m * groups),
          arena.take_array<std::int32_t>(m * groups)};
}

// Rows row .. row + rows of a product, outputs out .. out + kTaskOuts.
struct Int8Task {
  const Product* product;
  const Int8Rows* x;
  std::int64_t row, rows, out;
};

const std::byte* codes_of(const Int8Task& task) {
  const WeightView& w = task.product->w;
  return w.data + bytes_of(w.dtype, task.out * w.cols);
}

// Changes sums.
void store_task(const Int8Task& task, float* sums) {
  const Product& p = *task.product;
  const std::int64_t outs = std::min(kTaskOuts, p.w.rows - task.out);
  const bool factors = has_factors(p.w);
  for (std::int64_t r = 0; r < task.rows; ++r, sums += kTaskOuts) {
    auto* to = reinterpret_cast<float*>(p.out.row(task.row + r)) + task.out;
    for (std::int64_t i = 0; factors && i < outs; ++i) sums[i] *= factor_of(p.w, task.out + i);
    for (std::int64_t i = 0; p.bias != nullptr && i < outs; ++i) sums[i] += p.bias[task.out + i];
    for (std::int64_t i = 0; p.add && i < outs; ++i) sums[i] += to[i];
    std::copy_n(sums, outs, to);
  }
}

bool share_rounded_x(const Product& a, const Product& b) {
  return a.x.data == b.x.data && a.x.rows == b.x.rows && a.x.row_stride == b.x.row_stride &&
         a.w.cols == b.w.cols && a.w.dtype == b.w.dtype && group_size(a.w) == group_size(b.w);
}

}  // namespace
}  // namespace int8_matmul

bool cpu_has_int8_dot() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool is_int8_dot_weight(DType w) {
  if (!cpu_has_int8_dot()) return false;
  return w == DType::u4 || (w == DType::e4m3 && __builtin_cpu_supports("avx512vbmi"));
}

void cpu_matmul_int8(const Execution& execution, Arena& arena, std::span<const Product> products) {
  using namespace int8_matmul;
  const Arena::Scope scope(arena);
  const std::int64_t count = std::ssize(products);
  auto* xs = arena.take_array<Int8Rows>(count);
  auto* ends = arena.take_array<std::int64_t>(count);  // tasks of products 0 to i
  std::int64_t tasks = 0, most_rows = 0, work = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Product& p = products[static_cast<std::size_t>(i)];
    if (i > 0 && share_rounded_x(p, products[static_cast<std::size_t>(i - 1)])) {
      xs[i] = xs[i - 1];
    } else {
      xs[i] = take_rows(arena, p);
      for_rows(execution, p.x.rows, 2 * p.x.cols,
               [&](std::int64_t row) { round_row(xs[i], p.x, row); });
    }
    tasks += ceil_div(p.x.rows, kTaskRows) * ceil_div(p.w.rows, kTaskOuts);
    ends[i] = tasks;
    most_rows = std::max(most_rows, std::min(p.x.rows, kTaskRows));
    work += p.x.rows * p.w.rows * p.w.cols;
  }
  ThreadPool* pool = execution.threads;
  const int workers = pool == nullptr || work < kWorthThreads ? 1 : pool->threads();
  const std::int64_t floats = most_rows * kTaskOuts;
  auto* scratch = arena.take_array<float>(floats * workers);
  const auto task_at = [&](std::int64_t t) {
    const std::int64_t i = std::upper_bound(ends, ends + count, t) - ends;
    const Product& p = products[static_cast<std::size_t>(i)];
    if (i > 0) t -= ends[i - 1];
    const std::int64_t slices = ceil_div(p.w.rows, kTaskOuts);
    const std::int64_t row = t / slices * kTaskRows;
    return Int8Task{&p, &xs[i], row, std::min(kTaskRows, p.x.rows - row), t % slices * kTaskOuts};
  };
  auto body = [&](std::int64_t t, int worker) {
    const Int8Task task = task_at(t);
    const Product& p = *task.product;
    float* sums = scratch + floats * worker;
    std::fill_n(sums, task.rows * kTaskOuts, 0.0f);
    if (p.w.dtype == DType::u4) {
      sum_int4(p.w, *task.x, task.row, task.rows, task.out, sums);
    } else {
      const std::byte* next = t + workers < tasks ? codes_of(task_at(t + workers)) : nullptr;
      sum_e4m3(p.w, *task.x, task.row, task.rows, task.out, next, sums);
    }
    store_task(task, sums);
  };
  if (workers == 1) {
    for (std::int64_t t = 0; t < tasks; ++t) body(t, 0);
  } else {
    pool->run(tasks, body);
  }
}

}  // namespace lathe

#endif  // LATHE_INT8_DOT
