#include <cmath>
#include <cstring>
#include <vector>

#include "layout/rope/rope_rotate.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layout/rope/rope_rotate_fast.cc"
#include "hwy/foreach_target.h"
// foreach_target.h includes this file once per target, so the SIMD headers come after it.
#include "layout/codec/codec_fast-inl.h"

#ifndef LATHE_LAYOUT_ROPE_ROTATE_FAST_ONCE_
#define LATHE_LAYOUT_ROPE_ROTATE_FAST_ONCE_
namespace lathe {
namespace {

// A RotateJob as plain values, because SIMD functions must not call inline library code
// (codec_fast-inl.h).
struct FastRotate {
  const std::byte* in;
  std::byte* out;
  std::int64_t in_stride;   // bytes
  std::int64_t out_stride;  // bytes
  std::int64_t count;
  const LocalPos* positions;
  const float* table;  // [positions, rotary]; null if rotary is 0
  bool interleaved;
  bool in_place;
  bool inverse;
  std::size_t heads;
  std::size_t width;
  std::size_t first;
  std::size_t rotary;
  float inverse_scale;
  float* rotated;  // scratch [rotary]
  DType in_dtype;
  DType out_dtype;
};

}  // namespace
}  // namespace lathe
#endif  // LATHE_LAYOUT_ROPE_ROTATE_FAST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

void rotate_any(const FastRotate&, const RotateJob& job) { rotate_reference(job); }

#else

// T is float, or std::uint16_t for the bits of a bf16; for out also std::uint8_t for e4m3 codes.

template <class T>
HWY_INLINE void convert(const T* from, std::size_t n, float inverse_scale, std::uint8_t* to) {
  encode_codes<E4m3Code>(from, n, inverse_scale, to);
}
template <class T, class U>
HWY_INLINE void convert(const T* from, std::size_t n, float, U* to) {
  copy_values(from, n, to);
}

template <class D>
HWY_INLINE hn::VFromD<D> canonical(D d, hn::VFromD<D> v) {
  return hn::IfThenElse(hn::IsNaN(v),
                        hn::BitCast(d, hn::Set(hn::RebindToUnsigned<D>(), 0x7fc00000u)), v);
}

// Rotates a block of pairs of x from pair i on. `half` is the number of pairs in the row.
template <class D>
HWY_INLINE void rotate_pairs(D d, const FastRotate& job, const float* cos, std::size_t i,
                             float* x) {
  const std::size_t half = job.rotary / 2;
  const auto c = hn::LoadU(d, cos + i);
  const auto sin = hn::LoadU(d, cos + half + i);
  const auto s = job.inverse ? hn::Neg(sin) : sin;
  hn::VFromD<D> a, b;
  if (job.interleaved) {
    hn::LoadInterleaved2(d, x + 2 * i, a, b);
  } else {
    a = hn::LoadU(d, x + i);
    b = hn::LoadU(d, x + half + i);
  }
  const auto turned_a = canonical(d, hn::Sub(hn::Mul(a, c), hn::Mul(b, s)));
  const auto turned_b = canonical(d, hn::Add(hn::Mul(a, s), hn::Mul(b, c)));
  if (job.interleaved) {
    hn::StoreInterleaved2(turned_a, turned_b, d, x + 2 * i);
  } else {
    hn::StoreU(turned_a, d, x + i);
    hn::StoreU(turned_b, d, x + half + i);
  }
}

// x: [rotary]. rotary is a multiple of 16, so there are blocks of 8 pairs.
HWY_INLINE void rotate_one(const FastRotate& job, const float* cos, float* x) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  const std::size_t half = job.rotary / 2;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= half; i += hn::Lanes(d)) rotate_pairs(d, job, cos, i, x);
  for (; i < half; i += hn::Lanes(d8)) rotate_pairs(d8, job, cos, i, x);
}

template <class T, class U>
void rotate_rows(const FastRotate& job) {
  const std::size_t end = job.first + job.rotary;
  for (std::int64_t t = 0; t < job.count; ++t) {
    const T* in = reinterpret_cast<const T*>(job.in + t * job.in_stride);
    U* out = reinterpret_cast<U*>(job.out + t * job.out_stride);
    const std::int32_t position = job.positions[t].value;
    if (position < 0) {
      if (!job.in_place) std::memset(out, 0, job.heads * job.width * sizeof(U));
      continue;
    }
    const float* cos = job.table + position * static_cast<std::int64_t>(job.rotary);
    for (std::size_t h = 0; h < job.heads; ++h, in += job.width, out += job.width) {
      if (!job.in_place) {
        convert(in, job.first, job.inverse_scale, out);
        convert(in + end, job.width - end, job.inverse_scale, out + end);
      }
      if (job.rotary == 0) continue;
      copy_values(in + job.first, job.rotary, job.rotated);
      rotate_one(job, cos, job.rotated);
      convert(job.rotated, job.rotary, job.inverse_scale, out + job.first);
    }
  }
}

template <class T>
void rotate_from(const FastRotate& job) {
  if (job.out_dtype == DType::e4m3) return rotate_rows<T, std::uint8_t>(job);
  if (job.out_dtype == DType::bf16) return rotate_rows<T, std::uint16_t>(job);
  rotate_rows<T, float>(job);
}

void rotate_any(const FastRotate& job, const RotateJob&) {
  job.in_dtype == DType::bf16 ? rotate_from<std::uint16_t>(job) : rotate_from<float>(job);
}

#endif  // HWY_SCALAR

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(rotate_any);

void rotate_fast(const RotateJob& job) {
  std::vector<float> rotated(static_cast<std::size_t>(job.rotary()));
  const bool any = job.table != nullptr;
  HWY_DYNAMIC_DISPATCH(rotate_any)
  ({job.in.data, job.out.data, bytes_of(job.in.dtype, job.in.row_stride),
    bytes_of(job.out.dtype, job.out.row_stride), job.in.rows, job.positions.data(),
    any ? job.table->rows(job.positions) : nullptr,
    any && job.table->config().pairing == RopePairing::interleaved, job.in_place(),
    job.direction == RopeDirection::inverse, static_cast<std::size_t>(job.heads),
    static_cast<std::size_t>(job.width()), static_cast<std::size_t>(job.first),
    static_cast<std::size_t>(job.rotary()), job.inverse_scale, rotated.data(), job.in.dtype,
    job.out.dtype},
   job);
}

}  // namespace lathe
#endif  // HWY_ONCE
