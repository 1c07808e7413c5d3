#include "capi/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/float_formats.h"
#include "kernels/ref/merge.h"

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

std::byte* at(const ArrayRef& array, std::int64_t row, std::int64_t head) {
  const std::int64_t element = row * array.strides[0] + head * array.strides[1];
  return array.data + element * (array.type.bits / 8);
}

template <class T>
T number_at(const std::byte* bytes, std::size_t i) {
  T x;
  std::memcpy(&x, bytes + i * sizeof(T), sizeof(T));
  return x;
}

void read_numbers(const std::byte* bytes, DType type, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    if (type == DType::f32) to[i] = static_cast<double>(number_at<float>(bytes, i));
    if (type == DType::bf16) to[i] = static_cast<double>(to_f32(number_at<bf16>(bytes, i)));
    if (type == DType::f16) to[i] = static_cast<double>(to_f32(number_at<f16>(bytes, i)));
  }
}

template <class T>
void put(T x, std::byte* bytes, std::size_t i) {
  std::memcpy(bytes + i * sizeof(T), &x, sizeof(T));
}

void write_numbers(std::span<const double> from, DType type, std::byte* bytes) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    const auto x = static_cast<float>(from[i]);
    if (type == DType::f32) put(x, bytes, i);
    if (type == DType::bf16) put(to_bf16(x), bytes, i);
    if (type == DType::f16) put(to_f16(x), bytes, i);
  }
}

}  // namespace

Result<void> merge_partials(PartialRef a, PartialRef b, PartialRef to) {
  if (auto ok = check(a, b, to); !ok) return ok;
  const DType a_type = *float_type(a.out.type);
  const DType b_type = *float_type(b.out.type);
  const DType to_type = *float_type(to.out.type);
  const auto width = static_cast<std::size_t>(a.out.shape[2]);
  std::vector<double> from_a(width);
  std::vector<double> from_b(width);
  for (std::int64_t row = 0; row < a.out.shape[0]; ++row) {
    for (std::int64_t head = 0; head < a.out.shape[1]; ++head) {
      read_numbers(at(a.out, row, head), a_type, from_a);
      read_numbers(at(b.out, row, head), b_type, from_b);
      const auto a_lse = number_at<float>(at(a.lse, row, head), 0);
      const auto b_lse = number_at<float>(at(b.lse, row, head), 0);
      const double lse = merge_states(from_a, static_cast<double>(a_lse), from_b,
                                      static_cast<double>(b_lse), from_a);
      write_numbers(from_a, to_type, at(to.out, row, head));
      put(static_cast<float>(lse), at(to.lse, row, head), 0);
    }
  }
  return {};
}

}  // namespace lathe
