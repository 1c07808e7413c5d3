#include "kernels/cpu/attend_io.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/check.h"
#include "base/float_formats.h"

namespace lathe {
namespace {

template <class T, class Convert>
void convert_to(std::byte* bytes, std::int64_t count, const float* values, const Finished& state,
                Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T x = convert(state.empty ? 0.0f : values[i] * state.factor);
    std::memcpy(bytes + i * std::int64_t{sizeof(T)}, &x, sizeof(T));
  }
}

}  // namespace

void load_query(const RowsView& view, std::int64_t r, std::int64_t first, std::int64_t count,
                float scale, float* to) {
  const std::byte* from = view.row(r) + bytes_of(view.dtype, first);
  switch (view.dtype) {
    case DType::f32:
      for (std::int64_t i = 0; i < count; ++i) {
        float x;
        std::memcpy(&x, from + 4 * i, 4);
        to[i] = x * scale;
      }
      return;
    case DType::bf16:
      for (std::int64_t i = 0; i < count; ++i) {
        bf16 x;
        std::memcpy(&x, from + 2 * i, 2);
        to[i] = to_f32(x) * scale;
      }
      return;
    case DType::e4m3:
      for (std::int64_t i = 0; i < count; ++i) {
        to[i] = to_f32(e4m3{static_cast<std::uint8_t>(from[i])}) * scale;
      }
      return;
    default:
      LATHE_CHECK(false, "a dtype that check_args lets nobody read");
  }
}

Finished finish_softmax(float max, float sum, const float* sink, float value_scale) {
  if (sum == 0) return {-std::numeric_limits<double>::infinity(), 0, true};
  const double lse = (double{max} + std::log2(double{sum})) * std::numbers::ln2;
  double factor = value_scale / double{sum};
  // A sink far above every score overflows the exponential, and the factor is 0 as it should be.
  if (sink != nullptr) factor /= 1 + std::exp(double{*sink} - lse);
  return {lse, static_cast<float>(factor), false};
}

void store_output(const MutableRowsView& view, std::int64_t r, std::int64_t first,
                  std::int64_t count, const float* values, const Finished& state) {
  std::byte* to = view.row(r) + bytes_of(view.dtype, first);
  switch (view.dtype) {
    case DType::f64:
      return convert_to<double>(to, count, values, state, [](float x) { return double{x}; });
    case DType::f32:
      return convert_to<float>(to, count, values, state, [](float x) { return x; });
    case DType::bf16:
      return convert_to<bf16>(to, count, values, state, [](float x) { return to_bf16(x); });
    default:
      LATHE_CHECK(false, "a dtype that check_args lets nobody write");
  }
}

void store_lse(const MutableRowsView& view, std::int64_t r, std::int64_t head, double lse) {
  if (view.data == nullptr) return;
  std::byte* to = view.row(r) + bytes_of(view.dtype, head);
  if (view.dtype == DType::f64) {
    std::memcpy(to, &lse, 8);
  } else {
    const auto x = static_cast<float>(lse);
    std::memcpy(to, &x, 4);
  }
}

}  // namespace lathe
