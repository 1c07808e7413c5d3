#include "kernels/cpu/latent_math.h"

#include <cstring>

#include "base/float_formats.h"

// Vectors of unknown size cannot be elements of register blocks; Arm has NEON beside them.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_rows.cc"
#include "hwy/foreach_target.h"
// The SIMD headers follow foreach_target.h, which includes this file once per target.
#include "kernels/cpu/latent_math-inl.h"

#ifndef LATHE_KERNELS_CPU_LATENT_ROWS_ONCE_
#define LATHE_KERNELS_CPU_LATENT_ROWS_ONCE_
namespace lathe {
namespace {

// Not a std::array: its functions would be compiled for one SIMD target and linked for all of them.
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
#endif  // LATHE_KERNELS_CPU_LATENT_ROWS_ONCE_

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

void fold(const LatentState& from, const LatentState& into, std::int64_t lines,
          std::int64_t out_stride) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  for (std::int64_t line = 0; line < lines; ++line) {
    if (from.sum[line] == 0) continue;
    const float* HWY_RESTRICT a = from.out + line * out_stride;
    float* HWY_RESTRICT b = into.out + line * out_stride;
    if (into.sum[line] == 0) {
      std::memcpy(b, a, static_cast<std::size_t>(out_stride) * sizeof(float));
      into.sum[line] = from.sum[line];
      into.highest[line] = from.highest[line];
      continue;
    }
    const float x = from.highest[line];
    const float y = into.highest[line];
    const float highest = x > y ? x : y;
    const float wa = exp_of(x - highest);
    const float wb = exp_of(y - highest);
    const V va = hn::Set(d, wa);
    const V vb = hn::Set(d, wb);
    for (std::int64_t i = 0; i < out_stride; i += lanes) {
      const V scaled = hn::Mul(hn::LoadU(d, b + i), vb);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, a + i), va, scaled), d, b + i);
    }
    into.sum[line] = from.sum[line] * wa + into.sum[line] * wb;
    into.highest[line] = highest;
  }
}

void pack(const std::byte* q, DType dtype, std::int64_t elems, float scale, float* to) {
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
  for (const std::int64_t end = latent_padded(elems); i < end; ++i) to[i] = 0;
}

// bf16 bits in the low half of each lane, as to_bf16 in base/float_formats.h.
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

void store(const float* from, std::int64_t n, float factor, DType dtype, std::byte* to) {
  const D d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const V f = hn::Set(d, factor);
  alignas(64) float last[kLatentPad];
  for (std::int64_t i = 0; i < n; i += lanes) {
    const V x = hn::Mul(hn::LoadU(d, from + i), f);  // from is padded
    const std::int64_t count = n - i < lanes ? n - i : lanes;
    if (dtype == DType::f32) {
      hn::StoreU(x, d, last);
      std::memcpy(to + i * 4, last, static_cast<std::size_t>(count) * 4);
    } else if (dtype == DType::bf16) {
      const hn::Rebind<std::uint16_t, D> d16;
      alignas(64) std::uint16_t narrow[kLatentPad];
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

HWY_EXPORT(fold);
HWY_EXPORT(pack);
HWY_EXPORT(store);

void latent_fold(const LatentState& from, const LatentState& into, std::int64_t lines,
                 std::int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(fold)(from, into, lines, out_stride);
}
void latent_pack(const std::byte* q, DType dtype, std::int64_t elems, float scale, float* to) {
  HWY_DYNAMIC_DISPATCH(pack)(q, dtype, elems, scale, to);
}
void latent_store(const float* from, std::int64_t n, float factor, DType dtype, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(store)(from, n, factor, dtype, to);
}

}  // namespace lathe
#endif  // HWY_ONCE
