#include "layout/rope_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "layout/codec_fast.h"
#include "layout/codec_plan.h"
#include "layout/codec_ref.h"
#include "layout/rope_rotate.h"

namespace lathe {
namespace {

Result<void> check_table(const RopeWrite& op, const CacheLayout& layout) {
  const LayoutDims& dims = layout.dims();
  const auto got = op.table == nullptr ? std::string("no table")
                                       : fmt::format("a table of dim {}", op.table->dim());
  if (is_gqa(layout.kind())) {
    return Error{ErrorCode::unsupported, "pool.layout", "a latent or index layout",
                 std::string(layout.name()), "use apply_rope, then encode_rows"};
  }
  if (layout.kind() == LayoutKind::index_fp8) {
    if (op.table == nullptr || (op.table->dim() % 16 == 0 && op.table->dim() <= dims.dim))
      return {};
    return Error{ErrorCode::invalid_argument, "table",
                 fmt::format("none, or a dim that is a multiple of 16 up to {}", dims.dim), got,
                 ""};
  }
  if (op.place != RopePlace::last) {
    return Error{ErrorCode::invalid_argument, "place", "last", std::string(name(op.place)),
                 fmt::format("{} keeps its rotary part behind the latent", layout.name())};
  }
  if ((op.table == nullptr ? 0 : op.table->dim()) == dims.rope) return {};
  return Error{ErrorCode::invalid_argument, "table",
               dims.rope == 0 ? "no table, because the layout's rope is 0"
                              : fmt::format("a table of the layout's rope, dim {}", dims.rope),
               got, ""};
}

Result<void> check_q(const RopeWrite& op, std::int64_t count, std::int64_t width) {
  if (op.q.rows == 0 && op.q_out.rows == 0) return {};
  if (op.q.cols < width || op.q.cols % width != 0) {
    return Error{ErrorCode::invalid_argument, "q.cols",
                 fmt::format("heads of {} elements, as k", width), fmt::format("{}", op.q.cols),
                 ""};
  }
  if (auto ok = check_rows("q", op.q, count, op.q.cols); !ok) return ok;
  const auto out = check_rows("q_out", read_only(op.q_out), count, op.q.cols,
                              {DType::f32, DType::bf16, DType::e4m3});
  if (!out) return out;
  return check_scale("q_scale", op.q_scale);
}

Result<void> check(const RopeWrite& op, const PoolView& pool) {
  const auto count = static_cast<std::int64_t>(op.slots.size());
  const std::int64_t width = pool.layout.row_elems();
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_table(op, pool.layout); !ok) return ok;
  if (auto ok = check_rows("k", op.k, count, width); !ok) return ok;
  if (auto ok = check_q(op, count, width); !ok) return ok;
  if (auto ok = check_scales("scales", op.scales); !ok) return ok;
  if (auto ok = check_slots("slots", op.slots, pool); !ok) return ok;
  if (op.positions.size() != op.slots.size() && !(op.table == nullptr && op.positions.empty())) {
    return Error{ErrorCode::invalid_argument, "positions",
                 fmt::format("{} positions, as many as slots", count),
                 fmt::format("{}", op.positions.size()), ""};
  }
  if (op.table == nullptr) return {};
  return check_positions("positions", op.positions, *op.table);
}

}  // namespace

Result<void> rope_quantize_write(const RopeWrite& op, const PoolView& pool, CodecPath path) {
  if (auto ok = check(op, pool); !ok) return ok;
  const auto count = op.k.rows;
  const std::int64_t width = pool.layout.row_elems();
  const std::int64_t rotary = op.table == nullptr ? 0 : op.table->dim();
  const std::int64_t first = op.place == RopePlace::last ? width - rotary : 0;

  // A hole in either list is a hole of the token.
  std::vector<LocalPos> positions(op.slots.size(), LocalPos(0));
  std::copy(op.positions.begin(), op.positions.end(), positions.begin());
  std::vector<Slot> slots(op.slots.begin(), op.slots.end());
  for (std::size_t t = 0; t < slots.size(); ++t) {
    if (positions[t].is_hole()) slots[t] = Slot();
    if (slots[t].is_hole()) positions[t] = LocalPos();
  }

  if (op.q.rows > 0) {
    rotate({op.q, op.q_out, positions, op.table, op.q.cols / width, first, RopeDirection::forward,
            1.0f / op.q_scale},
           path);
  }

  // A few rows at a time: the rotated f32 rows stay in the first-level cache.
  constexpr std::int64_t kRows = 8;
  std::vector<float> buffer(static_cast<std::size_t>(kRows * width));
  auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
  for (std::int64_t t = 0; t < count; t += kRows) {
    const std::int64_t n = std::min(kRows, count - t);
    const auto at = static_cast<std::size_t>(t);
    const auto take = static_cast<std::size_t>(n);
    const RowsView k{op.k.row(t), op.k.dtype, n, width, op.k.row_stride};
    rotate({k,
            {bytes, DType::f32, n, width, width},
            std::span(positions).subspan(at, take),
            op.table,
            1,
            first,
            RopeDirection::forward,
            1},
           path);
    const EncodeJob job{{bytes, DType::f32, n, width, width},
                        std::span<const Slot>(slots).subspan(at, take),
                        pool,
                        op.scales};
    path == CodecPath::fast ? encode_fast(job) : encode_reference(job);
  }
  return {};
}

}  // namespace lathe
