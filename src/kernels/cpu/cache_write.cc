#include "kernels/cpu/cache_write.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/float_formats.h"
#include "base/rows.h"

namespace lathe {
namespace {

constexpr std::int64_t kChunkRows = 16;
constexpr std::int64_t kWorthWriters = 1 << 15;  // fewer elements stay on the calling thread

/// Calls body(first, count) -> Result<void> for chunks of rows in parallel; returns the first
/// error.
template <class Body>
Result<void> for_chunks(const Execution& execution, std::int64_t rows, std::int64_t elements,
                        Body&& body) {
  ThreadPool* threads = execution.threads;
  if (threads == nullptr || rows * elements < kWorthWriters) return body(std::int64_t{0}, rows);
  std::mutex guard;
  std::optional<Error> failed;
  threads->run((rows + kChunkRows - 1) / kChunkRows, [&](std::int64_t task, int) {
    const std::int64_t first = task * kChunkRows;
    if (Result<void> done = body(first, std::min(kChunkRows, rows - first)); !done) {
      const std::lock_guard lock(guard);
      if (!failed) failed = done.error();
    }
  });
  if (failed) return *failed;
  return {};
}

template <class T>
std::span<const T> part(std::span<const T> all, std::int64_t first, std::int64_t count) {
  return all.empty()
             ? all
             : all.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
}

}  // namespace

Result<void> cpu_rope_write(const Execution& execution, const RopeWrite& op, const PoolView& pool) {
  return for_chunks(execution, op.k.rows, op.k.cols + op.q.cols,
                    [&](std::int64_t first, std::int64_t n) {
                      RopeWrite chunk = op;
                      chunk.k = rows_at(op.k, first, n);
                      chunk.positions = part(op.positions, first, n);
                      chunk.slots = part(op.slots, first, n);
                      if (op.q.rows > 0) {
                        chunk.q = rows_at(op.q, first, n);
                        chunk.q_out = rows_at(op.q_out, first, n);
                      }
                      return rope_quantize_write(chunk, pool);
                    });
}

Result<void> cpu_rotate_rows(const Execution& execution, const RopeTable& table,
                             std::span<const LocalPos> positions, const MutableRowsView& rows,
                             std::int64_t heads, std::int64_t first, RopeDirection direction) {
  return for_chunks(execution, rows.rows, rows.cols, [&](std::int64_t at, std::int64_t n) {
    return apply_rope(table, part(positions, at, n), rows_at(rows, at, n), heads, first, direction);
  });
}

Result<void> cpu_write_rows(const Execution& execution, const RowsView& rows,
                            std::span<const Slot> slots, const PoolView& pool,
                            const TensorScales& scales, ValueTally* tally) {
  return for_chunks(execution, rows.rows, rows.cols, [&](std::int64_t first, std::int64_t n) {
    Result<void> ok = encode_rows(rows_at(rows, first, n), part(slots, first, n), pool, scales);
    if (ok && tally != nullptr) {
      tally->add(rows_at(rows, first, n), part(slots, first, n), pool.layout, scales);
    }
    return ok;
  });
}

void cpu_cast_rows(const Execution& execution, const RowsView& x, const MutableRowsView& out) {
  LATHE_CHECK(x.dtype == DType::f32 && x.rows == out.rows && x.cols == out.cols, "rows of f32");
  const Result<void> done = for_chunks(
      execution, x.rows, x.cols, [&](std::int64_t first, std::int64_t n) -> Result<void> {
        for (std::int64_t t = first; t < first + n; ++t) {
          const auto* from = reinterpret_cast<const float*>(x.row(t));
          if (out.dtype == DType::f32) {
            std::memcpy(out.row(t), from, static_cast<std::size_t>(4 * x.cols));
          } else if (out.dtype == DType::bf16) {
            auto* to = reinterpret_cast<bf16*>(out.row(t));
            for (std::int64_t i = 0; i < x.cols; ++i) to[i] = to_bf16(from[i]);
          } else {
            LATHE_CHECK(out.dtype == DType::e4m3, "f32, bf16 or e4m3");
            auto* to = reinterpret_cast<e4m3*>(out.row(t));
            for (std::int64_t i = 0; i < x.cols; ++i) to[i] = to_e4m3(from[i]);
          }
        }
        return {};
      });
  LATHE_CHECK(done.ok(), "a cast cannot fail");
}

}  // namespace lathe
