#include "kernels/ref/linear.h"

#include <cstring>

#include "base/check.h"
#include "base/float_formats.h"

namespace lathe {
namespace {

template <class T>
T read(const std::byte* data, std::int64_t i) {
  T x;
  std::memcpy(&x, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return x;
}

// The 4-bit code of element i.
std::uint8_t nibble(const std::byte* data, std::int64_t i) {
  const auto pair = std::to_integer<unsigned>(data[i / 2]);
  return static_cast<std::uint8_t>(i % 2 == 0 ? pair & 0xfu : pair >> 4);
}

// The scale of group g.
float group_scale(const GroupScales& groups, std::int64_t g) {
  switch (groups.dtype) {
    case DType::bf16:
      return to_f32(read<bf16>(groups.data, g));
    case DType::f16:
      return to_f32(read<f16>(groups.data, g));
    default:
      LATHE_CHECK(groups.dtype == DType::e4m3, "scales of groups are bf16, f16 or e4m3");
      return to_f32(read<e4m3>(groups.data, g));
  }
}

float e2m1_at(const WeightView& w, std::int64_t i) {
  const float code = to_f32(e2m1{nibble(w.data, i)});
  if (w.groups.data != nullptr) return code * group_scale(w.groups, i / kNvBlock) * w.scales[0];
  const ue8m0 scale = w.mx_scales[i / kMxBlock];
  return scale.bits == 0 ? 0 : code * to_f32(scale);
}

float u4_at(const WeightView& w, std::int64_t i) {
  const std::int64_t group = i / w.groups.size;
  const int zero = w.groups.zeros == nullptr ? kU4Zero : w.groups.zeros[group];
  return static_cast<float>(int{nibble(w.data, i)} - zero) * group_scale(w.groups, group);
}

void ref_product(const Product& p) {
  for (std::int64_t t = 0; t < p.x.rows; ++t) {
    for (std::int64_t n = 0; n < p.w.rows; ++n) {
      double sum = p.bias != nullptr ? p.bias[n] : 0;
      for (std::int64_t k = 0; k < p.w.cols; ++k) {
        const std::int64_t column = p.w.columns == nullptr ? k : p.w.columns[k];
        sum += double{read<float>(p.x.row(t), column)} * weight_at(p.w, n, k);
      }
      if (p.add) sum += read<float>(p.out.row(t), n);
      const auto rounded = static_cast<float>(sum);
      std::memcpy(p.out.row(t) + 4 * n, &rounded, 4);
    }
  }
}

}  // namespace

float weight_at(const WeightView& w, std::int64_t row, std::int64_t col) {
  const std::int64_t i = row * w.cols + col;
  switch (w.dtype) {
    case DType::f32:
      return read<float>(w.data, i);
    case DType::bf16:
      return to_f32(read<bf16>(w.data, i));
    case DType::f16:
      return to_f32(read<f16>(w.data, i));
    case DType::e2m1:
      return e2m1_at(w, i);
    case DType::u4:
      return u4_at(w, i);
    default: {
      LATHE_CHECK(w.dtype == DType::e4m3, "weights are f32, bf16, f16, e4m3, u4 or e2m1");
      const float code = to_f32(read<e4m3>(w.data, i));
      if (w.scales == nullptr) return code;
      if (w.scale_rows) return code * w.scales[row];
      return code * w.scales[row / kWeightBlock * weight_blocks(w.cols) + col / kWeightBlock];
    }
  }
}

void ref_head_matmul(const HeadProducts& op) {
  for (std::int64_t h = 0; h < op.w->count(); ++h) ref_product(product_of(op, h));
}

void ref_matmul(std::span<const Product> products) {
  for (const Product& p : products) ref_product(p);
}

}  // namespace lathe
