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

void ref_product(const Product& p) {
  for (std::int64_t t = 0; t < p.x.rows; ++t) {
    for (std::int64_t n = 0; n < p.w.rows; ++n) {
      double sum = p.bias != nullptr ? p.bias[n] : 0;
      for (std::int64_t k = 0; k < p.w.cols; ++k) {
        sum += double{read<float>(p.x.row(t), k)} * weight_at(p.w, n, k);
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
    case DType::e2m1: {
      const auto pair = std::to_integer<unsigned>(w.data[i / 2]);
      const e2m1 code{static_cast<std::uint8_t>(i % 2 == 0 ? pair & 0xfu : pair >> 4)};
      const ue8m0 scale = w.mx_scales[i / kMxBlock];
      return scale.bits == 0 ? 0 : to_f32(code) * to_f32(scale);
    }
    default: {
      LATHE_CHECK(w.dtype == DType::e4m3, "weights are f32, bf16, f16, e4m3 or e2m1");
      const float code = to_f32(read<e4m3>(w.data, i));
      if (w.scales == nullptr) return code;
      const std::int64_t across = (w.cols + kWeightBlock - 1) / kWeightBlock;
      return code * w.scales[row / kWeightBlock * across + col / kWeightBlock];
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
