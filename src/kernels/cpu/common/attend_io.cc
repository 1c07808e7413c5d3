#include "kernels/cpu/common/attend_io.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/float_formats.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/common/attend_io.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"

#ifndef LATHE_KERNELS_CPU_ATTEND_IO_ONCE_
#define LATHE_KERNELS_CPU_ATTEND_IO_ONCE_
namespace lathe {
namespace {

// Not a std::array: the linker might pick its member functions compiled for one SIMD target and use
// them for all.
struct E4m3Table {
  float values[256];
};
constexpr E4m3Table make_e4m3_table() {
  E4m3Table table{};
  for (unsigned i = 0; i < 256; ++i) table.values[i] = to_f32(e4m3{static_cast<std::uint8_t>(i)});
  return table;
}
constexpr E4m3Table kE4m3 = make_e4m3_table();

}  // namespace
}  // namespace lathe
#endif  // LATHE_KERNELS_CPU_ATTEND_IO_ONCE_

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kIoPad>;
using V = hn::Vec<D>;
using Du = hn::RebindToUnsigned<D>;

// to = q * scale, for `elems` elements of f32, bf16 or e4m3.
void load(const std::byte* q, DType dtype, std::int64_t elems, float scale, float* to) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V s = hn::Set(d, scale);
  std::int64_t i = 0;
  if (dtype == DType::f32) {
    const auto* x = reinterpret_cast<const float*>(q);
    for (; i + lanes <= elems; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), s), d, to + i);
    for (; i < elems; ++i) to[i] = x[i] * scale;
  } else if (dtype == DType::bf16) {
    const Du du;
    const hn::Rebind<std::uint16_t, D> d16;
    const auto* x = reinterpret_cast<const std::uint16_t*>(q);
    for (; i + lanes <= elems; i += lanes) {
      const auto high = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, x + i)));
      hn::StoreU(hn::Mul(hn::BitCast(d, high), s), d, to + i);
    }
    for (; i < elems; ++i) {
      to[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(x[i]) << 16) * scale;
    }
  } else {
    const auto* x = reinterpret_cast<const std::uint8_t*>(q);
    for (; i < elems; ++i) to[i] = kE4m3.values[x[i]] * scale;
  }
}

// bf16 bits in the low half of each lane; rounds as to_bf16() of base/float_formats.h.
HWY_INLINE hn::Vec<Du> round_to_bf16(hn::Vec<Du> u) {
  const Du d;
  const hn::RebindToSigned<Du> di;
  const auto magnitude = hn::And(u, hn::Set(d, 0x7fffffffu));
  const auto nan = hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, 0x7f800000)));
  const auto quiet = hn::Or(hn::AndNot(hn::Set(d, 0x7fffffffu), u), hn::Set(d, 0x7fc00000u));
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(d, 1u));
  const auto rounded = hn::Add(hn::Add(u, hn::Set(d, 0x7fffu)), odd);
  return hn::ShiftRight<16>(hn::IfThenElse(nan, quiet, rounded));
}

// to = from * factor, rounded, for n elements. Reads whole vectors of `from`.
void store(const float* from, std::int64_t n, float factor, DType dtype, std::byte* to) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V f = hn::Set(d, factor);
  alignas(64) float last[kIoPad];
  for (std::int64_t i = 0; i < n; i += lanes) {
    const V x = hn::Mul(hn::LoadU(d, from + i), f);  // from is padded
    const std::int64_t count = n - i < lanes ? n - i : lanes;
    if (dtype == DType::f32) {
      hn::StoreU(x, d, last);
      std::memcpy(to + i * 4, last, static_cast<std::size_t>(count) * 4);
    } else if (dtype == DType::bf16) {
      const hn::Rebind<std::uint16_t, D> d16;
      alignas(64) std::uint16_t narrow[kIoPad];
      const auto bits = round_to_bf16(hn::BitCast(Du(), x));
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(hn::RebindToSigned<D>(), bits)), d16, narrow);
      std::memcpy(to + i * 2, narrow, static_cast<std::size_t>(count) * 2);
    } else {
      hn::StoreU(x, d, last);
      for (std::int64_t j = 0; j < count; ++j) {
        const double wide = last[j];
        std::memcpy(to + (i + j) * 8, &wide, 8);
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(load);
HWY_EXPORT(store);

void load_row(const RowsView& view, std::int64_t r, std::int64_t first, std::int64_t count,
              float scale, float* to) {
  HWY_DYNAMIC_DISPATCH(load)
  (view.row(r) + bytes_of(view.dtype, first), view.dtype, count, scale, to);
}

Finished finish_softmax(float max, float sum, const float* sink, float value_scale) {
  if (sum == 0) return {-std::numeric_limits<double>::infinity(), 0, true};
  const double lse = (double{max} + std::log2(double{sum})) * std::numbers::ln2;
  double factor = value_scale / double{sum};
  // If the sink is far above every score, the exponential overflows and the factor becomes 0, which
  // is right.
  if (sink != nullptr) factor /= 1 + std::exp(double{*sink} - lse);
  return {lse, static_cast<float>(factor), false};
}

void store_output(const MutableRowsView& view, std::int64_t r, std::int64_t first,
                  std::int64_t count, const float* values, const Finished& state) {
  std::byte* to = view.row(r) + bytes_of(view.dtype, first);
  if (state.empty) {
    std::memset(to, 0, static_cast<std::size_t>(bytes_of(view.dtype, count)));
    return;
  }
  HWY_DYNAMIC_DISPATCH(store)(values, count, state.factor, view.dtype, to);
}

void store_lse(const AttendArgs& args, std::int64_t r, std::int64_t head, const Finished& state) {
  const MutableRowsView& view = args.lse;
  if (view.data == nullptr) return;
  const double lse = by_convention(args.lse_convention, state.lse);
  std::byte* to = view.row(r) + bytes_of(view.dtype, head);
  if (view.dtype == DType::f64) {
    std::memcpy(to, &lse, 8);
  } else {
    const auto x = static_cast<float>(lse);
    std::memcpy(to, &x, 4);
  }
}

}  // namespace lathe
#endif  // HWY_ONCE
