#include "layout/rope/rope_check.h"

#include <fmt/format.h>

#include "layout/codec/codec_plan.h"

namespace lathe {
namespace {

Result<void> check_table(const RopeWriteShape& op, const CacheLayout& layout) {
  const LayoutDims& dims = layout.dims();
  const auto got =
      op.table_dim == 0 ? std::string("no table") : fmt::format("a table of dim {}", op.table_dim);
  if (is_gqa(layout.kind())) {
    return Error{ErrorCode::unsupported, "pool.layout", "a latent or index layout",
                 std::string(layout.name()), "use apply_rope, then encode_rows"};
  }
  if (layout.kind() == LayoutKind::index_fp8) {
    if (op.table_dim % 16 == 0 && op.table_dim <= dims.dim) return {};
    return Error{ErrorCode::invalid_argument, "table",
                 fmt::format("none, or a dim that is a multiple of 16 up to {}", dims.dim), got,
                 ""};
  }
  if (op.place != RopePlace::last) {
    return Error{ErrorCode::invalid_argument, "place", "last", std::string(name(op.place)),
                 fmt::format("{} keeps its rotary part after the latent", layout.name())};
  }
  if (op.table_dim == dims.rope) return {};
  return Error{ErrorCode::invalid_argument, "table",
               dims.rope == 0 ? "no table, because the layout's rope is 0"
                              : fmt::format("a table of the layout's rope, dim {}", dims.rope),
               got, ""};
}

Result<void> check_q(const RopeWriteShape& op, std::int64_t count, std::int64_t width) {
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
  if (count > 0 && op.q_out.data == op.q.data) {
    return Error{ErrorCode::invalid_argument, "q_out.data", "memory that q does not have", "q's",
                 "apply_rope rotates in place"};
  }
  return check_scale("q_scale", op.q_scale);
}

}  // namespace

Result<void> check_rope_write(const RopeWriteShape& op, const ConstPoolView& pool) {
  const std::int64_t width = pool.layout.row_elems();
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (auto ok = check_table(op, pool.layout); !ok) return ok;
  if (auto ok = check_rows("k", op.k, op.slots, width); !ok) return ok;
  if (auto ok = check_q(op, op.slots, width); !ok) return ok;
  if (auto ok = check_scales("scales", op.scales); !ok) return ok;
  if (op.positions == op.slots || (op.table_dim == 0 && op.positions == 0)) return {};
  return Error{ErrorCode::invalid_argument, "positions",
               fmt::format("{} positions, as many as slots", op.slots),
               fmt::format("{}", op.positions), ""};
}

Result<void> check_apply_rope(const RowsView& rows, std::int64_t positions, std::int32_t table_dim,
                              std::int64_t heads, std::int64_t first) {
  if (auto ok = check_rows("rows", rows, positions, rows.cols); !ok) return ok;
  if (heads < 1 || rows.cols % heads != 0 || rows.cols / heads % 16 != 0) {
    return Error{ErrorCode::invalid_argument, "heads",
                 "a number that cuts rows.cols into heads of a multiple of 16",
                 fmt::format("{} heads in {} columns", heads, rows.cols), ""};
  }
  if (first >= 0 && first % 16 == 0 && table_dim % 16 == 0 &&
      first + table_dim <= rows.cols / heads) {
    return {};
  }
  return Error{ErrorCode::invalid_argument, "first",
               fmt::format("a rotary part within the head's {} elements, both ends multiples of 16",
                           rows.cols / heads),
               fmt::format("{} elements from {}", table_dim, first), ""};
}

}  // namespace lathe
