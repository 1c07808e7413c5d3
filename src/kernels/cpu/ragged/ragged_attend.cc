// Cuts a call into pieces of a request's rows, and runs each piece for every head.
#include "kernels/cpu/ragged/ragged_attend.h"

#include <algorithm>

#include "attn/check_args.h"
#include "kernels/cpu/common/tasks.h"
#include "kernels/cpu/ragged/ragged_task.h"

namespace lathe {
namespace {

// Tasks per thread: enough to balance tasks of different lengths.
constexpr std::int64_t kRaggedTasksPerThread = 3;
// Least rows of a piece: fewer would not repay the expansion of their keys.
constexpr std::int64_t kLeastRows = 192;

// Rows per task. Each task expands its keys again, so a task has all rows of a request unless there
// are too few requests for the threads.
std::int32_t rows_per_task(const AttendArgs& args, std::int64_t threads) {
  std::int64_t most = 1;
  std::int64_t busy = 0;  // requests with rows
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    const std::int64_t rows = std::int64_t{args.q_indptr[r + 1]} - args.q_indptr[r];
    most = std::max(most, rows);
    busy += rows > 0 ? 1 : 0;
  }
  const std::int64_t tasks = busy * args.problem.heads;
  if (threads > 1 && tasks > 0 && tasks < kRaggedTasksPerThread * threads) {
    const std::int64_t pieces = ceil_div(kRaggedTasksPerThread * threads, tasks);
    most = std::max(std::min(most, kLeastRows), ceil_div(most, pieces));
  }
  return static_cast<std::int32_t>(std::min<std::int64_t>(most, kRaggedTaskRows));
}

// Lists the pieces of all requests; only counts them if `to` is null.
std::int64_t list_pieces(const AttendArgs& args, std::int32_t most, RaggedRows* to) {
  std::int64_t count = 0;
  for (std::size_t r = 0; r < args.kv_lens.size(); ++r) {
    const std::int32_t begin = args.q_indptr[r];
    const std::int32_t end = args.q_indptr[r + 1];
    // Start with the last rows: they see the most keys, and the longest tasks should go first.
    for (std::int32_t left = end - begin; left > 0; ++count) {
      const std::int32_t rows = std::min(left, most);
      left -= rows;
      if (to == nullptr) continue;
      const std::int32_t row = begin + left;
      to[count] = {static_cast<std::int32_t>(r), row, rows,
                   std::int64_t{args.kv_lens[r]} - (end - row)};
    }
  }
  return count;
}

}  // namespace

Result<void> cpu_attend_ragged(const AttendArgs& args) {
  if (Result<void> ok = check_ragged_args(args); !ok) return ok;
  if (args.q.rows == 0) return {};
  Scratch own;
  Scratch& scratch = args.execution.scratch != nullptr ? *args.execution.scratch : own;
  const std::int64_t threads = thread_count(args.execution);

  const std::int32_t most = rows_per_task(args, threads);
  const std::int64_t count = list_pieces(args, most, nullptr);
  const std::int64_t list_bytes = whole_lines(count * std::int64_t{sizeof(RaggedRows)});
  const std::int64_t worker_bytes = whole_lines(ragged_worker_bytes(args, most));
  std::byte* memory = scratch.take(list_bytes + threads * worker_bytes);
  auto* pieces = reinterpret_cast<RaggedRows*>(memory);
  list_pieces(args, most, pieces);

  const std::int64_t heads = args.problem.heads;
  run_tasks(args.execution, count * heads, [&](std::int64_t task, int worker) {
    run_ragged_task(args, pieces[task / heads], static_cast<std::int32_t>(task % heads), most,
                    memory + list_bytes + worker * worker_bytes);
  });
  return {};
}

}  // namespace lathe
