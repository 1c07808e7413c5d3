#include "capi/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/rows_view.h"
#include "kernels/ref/merge.h"
#include "kernels/ref/rows_io.h"

namespace lathe {
namespace {

std::optional<DType> float_type(ArrayType type) {
  if (type.is(ArrayCode::floating, 32)) return DType::f32;
  if (type.is(ArrayCode::floating, 16)) return DType::f16;
  if (type.is(ArrayCode::bfloat, 16) || type.is(ArrayCode::unsigned_int, 16)) return DType::bf16;
  return std::nullopt;
}

Result<void> check_out(const ArrayRef& out) {
  if (!float_type(out.type)) {
    return out.wrong("float32, bfloat16, float16 or uint16 (bits of bfloat16)", out.type.name());
  }
  if (auto ok = out.need_rank(3, "[rows, heads, v_dim]"); !ok) return ok;
  return out.need_dense(2);
}

Result<void> check_lse(const ArrayRef& lse, const ArrayRef& out) {
  if (!lse.type.is(ArrayCode::floating, 32)) return lse.wrong("float32", lse.type.name());
  if (lse.rank() == 2 && std::ranges::equal(lse.shape, out.shape.first(2))) return {};
  return lse.wrong(
      fmt::format("the shape ({}, {}), as {}", out.shape[0], out.shape[1], out.argument),
      lse.describe());
}

// An output may be an input itself, because a row and head is read before it is written.
Result<void> check_apart(const ArrayRef& to, const ArrayRef& from) {
  const bool same = to.data == from.data && to.type.bits == from.type.bits &&
                    std::ranges::equal(to.shape, from.shape) &&
                    std::ranges::equal(to.strides, from.strides);
  if (same || !to.overlaps(from)) return {};
  return to.wrong("memory apart from " + from.argument, "memory that they share");
}

Result<void> check(PartialRef a, PartialRef b, PartialRef to) {
  for (const PartialRef& part : {a, b, to}) {
    if (auto ok = check_out(part.out); !ok) return ok;
    if (!std::ranges::equal(part.out.shape, a.out.shape)) {
      return part.out.wrong(a.out.describe(), part.out.describe());
    }
    if (auto ok = check_lse(part.lse, part.out); !ok) return ok;
  }
  for (const PartialRef& from : {a, b}) {
    for (const ArrayRef* output : {&to.out, &to.lse}) {
      if (auto ok = check_apart(*output, from.out); !ok) return ok;
      if (auto ok = check_apart(*output, from.lse); !ok) return ok;
    }
  }
  return check_apart(to.lse, to.out);
}

// One row and head of an array, [1, its last dimension].
MutableRowsView row_of(const ArrayRef& array, std::int64_t row, std::int64_t head) {
  const std::int64_t element = row * array.strides[0] + head * array.strides[1];
  const std::int64_t cols = array.rank() == 3 ? array.shape[2] : 1;
  return {array.data + element * (array.type.bits / 8), *float_type(array.type), 1, cols, cols};
}

void read(const MutableRowsView& from, std::span<double> to) {
  read_row({from.data, from.dtype, 1, from.cols, from.row_stride}, 0, 1.0, to);
}

}  // namespace

Result<void> merge_partials(PartialRef a, PartialRef b, PartialRef to) {
  if (auto ok = check(a, b, to); !ok) return ok;
  const auto width = static_cast<std::size_t>(a.out.shape[2]);
  std::vector<double> from_a(width);
  std::vector<double> from_b(width);
  double a_lse = 0;
  double b_lse = 0;
  for (std::int64_t row = 0; row < a.out.shape[0]; ++row) {
    for (std::int64_t head = 0; head < a.out.shape[1]; ++head) {
      read(row_of(a.out, row, head), from_a);
      read(row_of(b.out, row, head), from_b);
      read(row_of(a.lse, row, head), {&a_lse, 1});
      read(row_of(b.lse, row, head), {&b_lse, 1});
      const double lse = merge_states(from_a, a_lse, from_b, b_lse, from_a);
      write_row(row_of(to.out, row, head), 0, from_a);
      write_row(row_of(to.lse, row, head), 0, {&lse, 1});
    }
  }
  return {};
}

}  // namespace lathe
