#include "step/compact_attend.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/rows.h"
#include "layout/codec/codec.h"

namespace lathe {
namespace {

// Rows per kernel call. With lists of selected keys, their keys are gathered together.
constexpr std::int64_t kListRows = 16;

class CompactRows {
 public:
  CompactRows(const AttendOp& op, const Execution& execution, Arena& arena, AttendFn kernel)
      : op_(op), arena_(arena), kernel_(kernel), args_(attend_args(op, execution)) {}

  Result<void> run() {
    for (std::int64_t r = 0; r < op_.step->requests; ++r) {
      const auto at = static_cast<std::size_t>(r);
      const std::int64_t first = op_.step->q_indptr[at];
      const std::int64_t rows = op_.step->q_indptr[at + 1] - first;
      if (rows == 0) continue;
      if (Result<void> ok = op_.slots_width > 0 ? lists(first, rows) : pages(r, first, rows); !ok) {
        return ok;
      }
    }
    return {};
  }

 private:
  Result<void> pages(std::int64_t r, std::int64_t first, std::int64_t rows) {
    const Arena::Scope scope(arena_);
    const StepView& step = *op_.step;
    const std::int32_t keys = step.kv_lens[static_cast<std::size_t>(r)];
    auto* slots = arena_.take_array<Slot>(keys);
    for (std::int32_t p = 0; p < keys; ++p) {
      const PageId page = step.page_table.at(r, p / op_.pool.page_size);
      slots[p] =
          page.is_hole() ? Slot() : slot_of(page, op_.pool.page_size, p % op_.pool.page_size);
    }
    auto compact = gather({slots, static_cast<std::size_t>(keys)});
    if (!compact) return compact.error();
    const AttentionProblem& problem = op_.plan->problem;
    const std::int32_t window = problem.window;
    const std::int64_t width = window > 0 ? std::min(window, keys) : keys;
    for (std::int64_t done = 0; done < rows; done += kListRows) {
      const std::int64_t n = std::min(kListRows, rows - done);
      const Arena::Scope tile(arena_);
      auto* list = arena_.take_array<std::int32_t>(n * width);
      for (std::int64_t t = 0; t < n; ++t) {
        const auto position = static_cast<std::int32_t>(keys - rows + done + t);
        const auto begin = static_cast<std::int32_t>(problem.first_key(position));
        for (std::int64_t i = 0; i < width; ++i) {
          const auto key = static_cast<std::int32_t>(begin + i);
          list[t * width + i] = key <= position ? key : -1;
        }
      }
      if (Result<void> ok = run_kernel(first + done, n, *compact, list, width); !ok) return ok;
    }
    return {};
  }

  Result<void> lists(std::int64_t first, std::int64_t rows) {
    const std::int64_t width = op_.slots_width;
    const std::int64_t key_bytes = bytes_of(DType::bf16, op_.pool.layout.row_elems());
    const std::int64_t most = std::clamp(std::ssize(op_.gather_workspace) / (width * key_bytes),
                                         std::int64_t{1}, kListRows);
    std::int64_t n = 0;
    for (std::int64_t done = 0; done < rows; done += n) {
      const Arena::Scope scope(arena_);
      n = std::min(most, rows - done);
      const auto listed = op_.slots.subspan(static_cast<std::size_t>((first + done) * width),
                                            static_cast<std::size_t>(n * width));
      auto* slots = arena_.take_array<Slot>(n * width);
      auto* list = arena_.take_array<std::int32_t>(n * width);
      for (std::int64_t i = 0; i < n * width; ++i) {
        slots[i] = Slot(listed[static_cast<std::size_t>(i)]);
        list[i] = slots[i].is_hole() ? -1 : static_cast<std::int32_t>(i);
      }
      auto compact = gather({slots, static_cast<std::size_t>(n * width)});
      if (!compact) return compact.error();
      if (Result<void> ok = run_kernel(first + done, n, *compact, list, width); !ok) return ok;
    }
    return {};
  }

  Result<RowsView> gather(std::span<const Slot> slots) {
    const std::int64_t cols = op_.pool.layout.row_elems();
    const std::int64_t bytes = bytes_of(DType::bf16, cols * std::ssize(slots));
    if (bytes > std::ssize(op_.gather_workspace)) {
      return Error{ErrorCode::exhausted, "gather", fmt::format("room for {} bytes", bytes),
                   fmt::format("{}", op_.gather_workspace.size()), "raise the gather budget"};
    }
    const MutableRowsView out{op_.gather_workspace.data(), DType::bf16, std::ssize(slots), cols,
                              cols};
    if (Result<void> ok = gather_decode(op_.pool, slots, out, op_.scales); !ok) return ok.error();
    return constant(out);
  }

  Result<void> run_kernel(std::int64_t first, std::int64_t n, const RowsView& compact,
                          const std::int32_t* list, std::int64_t width) {
    AttendArgs a = args_;
    a.q = rows_at(args_.q, first, n);
    a.out = rows_at(args_.out, first, n);
    a.schedule = nullptr;
    a.main = {};
    a.main.compact = compact;
    a.main.indices = {list, static_cast<std::size_t>(n * width)};
    a.main.index_width = width;
    a.problem.window = 0;  // the lists contain only keys of the window
    a.problem.chunked = false;
    // The lists name the keys, so each row is passed as a request with one key.
    auto* indptr = arena_.take_array<std::int32_t>(n + 1);
    auto* lens = arena_.take_array<std::int32_t>(n);
    for (std::int64_t t = 0; t <= n; ++t) indptr[t] = static_cast<std::int32_t>(t);
    std::fill_n(lens, n, 1);
    a.q_indptr = {indptr, static_cast<std::size_t>(n + 1)};
    a.kv_lens = {lens, static_cast<std::size_t>(n)};
    return kernel_(a);
  }

  const AttendOp& op_;
  Arena& arena_;
  AttendFn kernel_;
  AttendArgs args_;
};

}  // namespace

Result<void> attend_compact(const AttendOp& op, const Execution& execution, Arena& arena,
                            AttendFn kernel) {
  return CompactRows(op, execution, arena, kernel).run();
}

}  // namespace lathe
