// Rounds x once for all outputs, cuts the GEMMs into tasks and runs them on the threads.
#include "kernels/cpu/matmul/matmul_int8.h"

#include <algorithm>

#include "base/check.h"
#include "base/integers.h"
#include "kernels/cpu/common/dot_targets.h"
#include "kernels/cpu/common/for_rows.h"
#include "kernels/cpu/common/unroll.h"

#ifndef LATHE_INT8_DOT

namespace lathe {

bool cpu_has_int8_dot() { return false; }
void cpu_matmul_int8(const Execution&, Arena&, std::span<const Product>) {
  LATHE_CHECK(false, "not on this CPU");
}

}  // namespace lathe

#else

LATHE_TARGET_BEGIN(LATHE_INT8_DOT)
#include "kernels/cpu/matmul/int8_tiles-inl.h"
LATHE_TARGET_END

namespace lathe {
namespace int8_matmul {
namespace {

// With fewer multiply-adds, starting other threads costs more than it saves.
constexpr std::int64_t kWorthThreads = 1 << 17;

Int8Rows take_rows(Arena& arena, const Product& p) {
  const std::int64_t m = p.x.rows, k = p.w.cols, groups = k / p.w.groups.size;
  return {m,
          k,
          p.w.groups.size,
          arena.take_array<std::int8_t>(m * round_up(k, kChunk)),
          arena.take_array<float>(m * groups),
          arena.take_array<std::int32_t>(m * groups)};
}

void store_task(const Product& p, std::int64_t row, std::int64_t rows, std::int64_t out,
                const float* sums) {
  const std::int64_t outs = std::min(kTaskOuts, p.w.rows - out);
  for (std::int64_t r = 0; r < rows; ++r) {
    auto* to = reinterpret_cast<float*>(p.out.row(row + r)) + out;
    for (std::int64_t i = 0; i < outs; ++i) {
      float y = sums[r * kTaskOuts + i];
      if (p.bias != nullptr) y += p.bias[out + i];
      to[i] = p.add ? to[i] + y : y;
    }
  }
}

bool share_rounded_x(const Product& a, const Product& b) {
  return a.x.data == b.x.data && a.x.rows == b.x.rows && a.x.row_stride == b.x.row_stride &&
         a.w.cols == b.w.cols && a.w.groups.size == b.w.groups.size;
}

}  // namespace
}  // namespace int8_matmul

bool cpu_has_int8_dot() {
  return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
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
  auto body = [&](std::int64_t task, int worker) {
    const std::int64_t i = std::upper_bound(ends, ends + count, task) - ends;
    const Product& p = products[static_cast<std::size_t>(i)];
    if (i > 0) task -= ends[i - 1];
    const std::int64_t slices = ceil_div(p.w.rows, kTaskOuts);
    const std::int64_t row = task / slices * kTaskRows, out = task % slices * kTaskOuts;
    const std::int64_t rows = std::min(kTaskRows, p.x.rows - row);
    float* sums = scratch + floats * worker;
    sum_task(p.w, xs[i], row, rows, out, sums);
    store_task(p, row, rows, out, sums);
  };
  if (workers == 1) {
    for (std::int64_t t = 0; t < tasks; ++t) body(t, 0);
  } else {
    pool->run(tasks, body);
  }
}

}  // namespace lathe

#endif  // LATHE_INT8_DOT
