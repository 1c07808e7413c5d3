#include "layout/codec/codec_fast.h"

#include <cstring>
#include <vector>

#include "base/float_formats.h"
#include "layout/codec/codec_ref.h"
#include "layout/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "layout/codec/codec_fast.cc"
#include "hwy/foreach_target.h"
// foreach_target.h includes this file once per target, so the SIMD headers come after it.
#include "layout/codec/codec_fast-inl.h"

#ifndef LATHE_LAYOUT_CODEC_FAST_ONCE_
#define LATHE_LAYOUT_CODEC_FAST_ONCE_
namespace lathe {
namespace {

// A pool as plain values, because SIMD functions must not call inline library code
// (codec_fast-inl.h).
struct FastPool {
  std::byte* data;  // only encode and requantize write to it
  std::int64_t page_stride;
  std::int32_t page_size;
  const RowPlan* plan;
  TensorScales scales;
};

// A pool and the slots that a job uses in it.
struct FastRows {
  FastPool pool;
  const Slot* slots;   // [count], or null: first, first + 1, ...
  std::int32_t first;  // if slots is null
  std::int64_t count;
  std::byte* rows;            // only decode writes to it
  std::int64_t stride_bytes;  // from a row to the next
  DType dtype;
};

template <class Byte>
FastPool fast_pool(const BasicPoolView<Byte>& pool, const RowPlan& plan,
                   const TensorScales& scales) {
  return {const_cast<std::byte*>(pool.data), pool.page_stride, pool.page_size, &plan, scales};
}

// The records of one token.
struct TokenPlace {
  std::byte* page;
  std::int64_t index;

  TokenPlace(const FastPool& pool, std::int32_t slot)
      : page(pool.data + std::int64_t{slot / pool.page_size} * pool.page_stride),
        index(slot % pool.page_size) {}
  std::uint8_t* operator()(const PlacedPart& part) const {
    return reinterpret_cast<std::uint8_t*>(page + part.start + index * part.step);
  }
};

// Decodes tiles with a NaN or infinite scale. Encoding never writes such scales.
float slow_code(const ValueRun& run, const std::uint8_t* codes, std::size_t i, float scale) {
  const float code = run.dtype == DType::e4m3
                         ? to_f32(e4m3{codes[i]})
                         : to_f32(e2m1{static_cast<std::uint8_t>(codes[i / 2] >> (i % 2 * 4))});
  return scaled_value(code, scale);
}
void slow_tile(const ValueRun& run, const std::uint8_t* codes, std::size_t n, float scale,
               float* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] = slow_code(run, codes, i, scale);
}
void slow_tile(const ValueRun& run, const std::uint8_t* codes, std::size_t n, float scale,
               std::uint16_t* to) {
  for (std::size_t i = 0; i < n; ++i) to[i] = to_bf16(slow_code(run, codes, i, scale)).bits;
}

// The tensor scale of a run. Keys and values run through the same code after this: the hardware
// prefetcher tells streams apart by instruction, and so sees a row as one stream.
inline float run_scale(const ValueRun& run, const FastPool& pool) {
  return run.source == ScaleSource::value_tensor ? pool.scales.value : pool.scales.key;
}

float read_scale(const ValueRun& run, const std::uint8_t* scales, std::int32_t tile) {
  if (run.source == ScaleSource::tile_ue8m0) return to_f32(ue8m0{scales[tile]});
  float s;
  std::memcpy(&s, scales + 4 * tile, 4);
  return s;
}

void write_scale(const ValueRun& run, std::uint8_t* scales, std::int32_t tile, float s) {
  if (run.source == ScaleSource::tile_ue8m0) {
    scales[tile] = to_ue8m0_ceil(s).bits;
  } else {
    std::memcpy(scales + 4 * tile, &s, 4);
  }
}

}  // namespace
}  // namespace lathe
#endif  // LATHE_LAYOUT_CODEC_FAST_ONCE_

HWY_BEFORE_NAMESPACE();
namespace lathe {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

// Vectors of one lane: use the reference, which is as fast.
void encode_any(const FastRows&, const EncodeJob& job) { encode_reference(job); }
void decode_any(const FastRows&, const DecodeJob& job) { decode_reference(job); }
void requant_any(const FastRows&, const FastRows&, float*, float*, RequantReport& report,
                 const RequantJob& job) {
  report = requantize_reference(job);
}

#else

// T is float, or std::uint16_t for the bits of a bf16.

template <class T>
HWY_INLINE void encode_tiles(const T* x, const ValueRun& run, ScalePolicy policy,
                             std::uint8_t* values, std::uint8_t* scales) {
  const auto tile = static_cast<std::size_t>(run.tile);
  const bool fp4 = run.dtype == DType::e2m1;
  // The scales of a chunk of tiles are computed in one vector. Their amax are inserted in
  // registers: a vector load of scalars that were just stored would wait for the stores.
  const hn::CappedTag<float, 16> d;
  const auto chunk = static_cast<std::int32_t>(hn::Lanes(d));
  const auto lane = hn::Iota(d, 0.0f);
  HWY_ALIGN float scale[16];
  HWY_ALIGN float inverse[16];
  for (std::int32_t done = 0; done < run.tiles(); done += chunk) {
    const std::int32_t left = run.tiles() - done;
    const std::int32_t count = left < chunk ? left : chunk;
    const T* from = x + static_cast<std::size_t>(done) * tile;
    auto amax = hn::Zero(d);
    for (std::int32_t t = 0; t < count; ++t) {
      const float own = largest_finite(from + static_cast<std::size_t>(t) * tile, tile);
      const auto here = hn::Eq(lane, hn::Set(d, static_cast<float>(t)));
      amax = hn::IfThenElse(here, hn::Set(d, own), amax);
    }
    const auto s = tile_scales(d, amax, fp4, policy != ScalePolicy::raw_f32);
    hn::Store(s, d, scale);
    hn::Store(hn::Div(hn::Set(d, 1.0f), s), d, inverse);
    for (std::int32_t t = 0; t < count; ++t) {
      write_scale(run, scales, run.first_tile + done + t, scale[t]);
      const std::size_t at = static_cast<std::size_t>(t) * tile;
      const std::size_t element = static_cast<std::size_t>(done) * tile + at;
      if (fp4) {
        encode_e2m1_16(from + at, inverse[t], values + element / 2);
      } else {
        encode_codes<E4m3Code>(from + at, tile, inverse[t], values + element);
      }
    }
  }
}

template <class T>
HWY_INLINE void encode_run(const T* x, const ValueRun& run, const FastPool& pool,
                           const TokenPlace& token) {
  const auto n = static_cast<std::size_t>(run.elems);
  std::uint8_t* values = token(run.values);
  switch (run.source) {
    case ScaleSource::plain:
      copy_values(x, n, reinterpret_cast<std::uint16_t*>(values));
      break;
    case ScaleSource::key_tensor:
    case ScaleSource::value_tensor:
      encode_codes<E4m3Code>(x, n, 1.0f / run_scale(run, pool), values);
      break;
    case ScaleSource::tile_f32:
    case ScaleSource::tile_ue8m0:
      encode_tiles(x, run, pool.plan->policy, values, token(run.scales));
      break;
  }
}

template <class T>
HWY_INLINE void decode_tile(const ValueRun& run, const std::uint8_t* codes, std::size_t n,
                            float scale, T* to) {
  if (HWY_UNLIKELY(!is_finite(scale))) return slow_tile(run, codes, n, scale, to);
  if (run.dtype == DType::e2m1) return decode_e2m1_16(codes, scale, to);
  decode_e4m3(codes, n, scale, to);
}

template <class T>
HWY_INLINE void decode_run(const ValueRun& run, const FastPool& pool, const TokenPlace& token,
                           T* to) {
  const auto n = static_cast<std::size_t>(run.elems);
  const std::uint8_t* values = token(run.values);
  switch (run.source) {
    case ScaleSource::plain:
      copy_values(reinterpret_cast<const std::uint16_t*>(values), n, to);
      break;
    case ScaleSource::key_tensor:
    case ScaleSource::value_tensor:
      decode_e4m3(values, n, run_scale(run, pool), to);
      break;
    case ScaleSource::tile_f32:
    case ScaleSource::tile_ue8m0: {
      const std::uint8_t* scales = token(run.scales);
      const auto tile = static_cast<std::size_t>(run.tile);
      const std::size_t tile_bytes = run.dtype == DType::e2m1 ? tile / 2 : tile;
      for (std::int32_t t = 0; t < run.tiles(); ++t) {
        const auto at = static_cast<std::size_t>(t);
        decode_tile(run, values + at * tile_bytes, tile,
                    read_scale(run, scales, run.first_tile + t), to + at * tile);
      }
      break;
    }
  }
}

// Prefetches the bytes of a token a few rows after r, for reading or writing, if slots are not in
// order. If they are, the hardware prefetches, and these instructions would only cost time.
template <bool kWrite>
HWY_INLINE void prefetch_ahead(const FastRows& job, std::int64_t r) {
  constexpr std::int64_t kRowsAhead = 4;
  constexpr std::int32_t kCacheLine = 64;
  if (r + kRowsAhead >= job.count) return;
  const std::int32_t slot = job.slots[r + kRowsAhead].value;
  if (slot < 0 || slot == job.slots[r + kRowsAhead - 1].value + 1) return;
  const TokenPlace token(job.pool, slot);
  for (std::int32_t i = 0; i < job.pool.plan->run_count; ++i) {
    const ValueRun& run = job.pool.plan->runs.data()[i];
    const std::uint8_t* values = token(run.values);
    for (std::int32_t b = 0; b < run.values.bytes; b += kCacheLine) {
      __builtin_prefetch(values + b, kWrite ? 1 : 0);
    }
    if (run.tile != 0) __builtin_prefetch(token(run.scales), kWrite ? 1 : 0);
  }
}

template <class T>
HWY_INLINE void encode_rows(const FastRows& job) {
  const RowPlan& plan = *job.pool.plan;
  for (std::int64_t r = 0; r < job.count; ++r) {
    const std::int32_t slot = job.slots[r].value;
    prefetch_ahead<true>(job, r);
    if (slot < 0) continue;
    const TokenPlace token(job.pool, slot);
    const T* x = reinterpret_cast<const T*>(job.rows + r * job.stride_bytes);
    for (std::int32_t i = 0; i < plan.run_count; ++i) {
      const ValueRun& run = plan.runs.data()[i];
      encode_run(x + run.first, run, job.pool, token);
    }
    if (plan.pad.bytes > 0) {
      std::memset(token(plan.pad), 0, static_cast<std::size_t>(plan.pad.bytes));
    }
  }
}

template <class T>
HWY_INLINE void decode_rows(const FastRows& job) {
  const RowPlan& plan = *job.pool.plan;
  for (std::int64_t r = 0; r < job.count; ++r) {
    T* to = reinterpret_cast<T*>(job.rows + r * job.stride_bytes);
    std::int32_t slot = job.first + static_cast<std::int32_t>(r);
    if (job.slots != nullptr) {
      slot = job.slots[r].value;
      prefetch_ahead<false>(job, r);
    }
    if (slot < 0) {
      std::memset(to, 0, static_cast<std::size_t>(plan.elems) * sizeof(T));
      continue;
    }
    const TokenPlace token(job.pool, slot);
    for (std::int32_t i = 0; i < plan.run_count; ++i) {
      const ValueRun& run = plan.runs.data()[i];
      decode_run(run, job.pool, token, to + run.first);
    }
  }
}

void encode_any(const FastRows& job, const EncodeJob&) {
  job.dtype == DType::bf16 ? encode_rows<std::uint16_t>(job) : encode_rows<float>(job);
}

void decode_any(const FastRows& job, const DecodeJob&) {
  job.dtype == DType::bf16 ? decode_rows<std::uint16_t>(job) : decode_rows<float>(job);
}

// Largest |before - after|, without differences that are NaN.
HWY_INLINE float worst_error(const float* before, const float* after, std::size_t n) {
  const hn::ScalableTag<float> d;
  auto worst = hn::Zero(d);
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto error = hn::Abs(hn::Sub(hn::LoadU(d, before + i), hn::LoadU(d, after + i)));
    const auto counts = hn::Gt(error, hn::Zero(d));
    worst = hn::Max(worst, hn::IfThenElseZero(counts, error));
  }
  return hn::GetLane(hn::MaxOfLanes(d, worst));
}

HWY_INLINE std::int64_t count_saturated(const float* x, std::size_t n, float inverse) {
  const hn::ScalableTag<float> d;
  std::size_t count = 0;
  for (std::size_t i = 0; i < n; i += hn::Lanes(d)) {
    const auto y = hn::Abs(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, inverse)));
    // 464 is half way from 448 to 480, which e4m3 does not have; larger values saturate.
    count += hn::CountTrue(d, hn::Gt(y, hn::Set(d, 464.0f)));
  }
  return static_cast<std::int64_t>(count);
}

// Requantizes one run of a token. before, after: scratch, [run.elems] f32 each.
HWY_INLINE float requant_run(const ValueRun& from, const FastPool& src, const TokenPlace& source,
                             const ValueRun& to, const FastPool& dst, const TokenPlace& dest,
                             float* before, float* after, std::int64_t& saturated) {
  const auto n = static_cast<std::size_t>(from.elems);
  if (to.source == ScaleSource::tile_f32) {
    // The tile scales are the tensor scale, so codes are copied and no value changes.
    std::memcpy(dest(to.values), source(from.values), n);
    for (std::int32_t t = 0; t < to.tiles(); ++t) {
      write_scale(to, dest(to.scales), t, src.scales.key);
    }
    return 0;
  }
  decode_run(from, src, source, before);
  if (to.source == ScaleSource::key_tensor) {
    saturated += count_saturated(before, n, 1.0f / dst.scales.key);
  }
  encode_run(before, to, dst, dest);
  decode_run(to, dst, dest, after);
  return worst_error(before, after, n);
}

void requant_any(const FastRows& src, const FastRows& dst, float* before, float* after,
                 RequantReport& report, const RequantJob&) {
  for (std::int64_t r = 0; r < src.count; ++r) {
    const std::int32_t from = src.slots[r].value;
    const std::int32_t to = dst.slots[r].value;
    if (from < 0 || to < 0) continue;
    const TokenPlace source(src.pool, from);
    const TokenPlace dest(dst.pool, to);
    for (std::int32_t i = 0; i < src.pool.plan->run_count; ++i) {
      const float error = requant_run(src.pool.plan->runs.data()[i], src.pool, source,
                                      dst.pool.plan->runs.data()[i], dst.pool, dest, before, after,
                                      report.saturated);
      if (!(error > report.worst_abs_error)) continue;
      report.worst_abs_error = error;
      report.worst_slot.value = from;
    }
  }
}

#endif  // HWY_SCALAR

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace lathe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lathe {

HWY_EXPORT(encode_any);
HWY_EXPORT(decode_any);
HWY_EXPORT(requant_any);
HWY_EXPORT(target_name);

void encode_fast(const EncodeJob& job) {
  const RowPlan plan(job.pool.layout, job.pool.page_size);
  HWY_DYNAMIC_DISPATCH(encode_any)
  ({fast_pool(job.pool, plan, job.scales), job.slots.data(), 0, job.rows.rows,
    const_cast<std::byte*>(job.rows.data), bytes_of(job.rows.dtype, job.rows.row_stride),
    job.rows.dtype},
   job);
}

void decode_fast(const DecodeJob& job) {
  const RowPlan plan(job.pool.layout, job.pool.page_size);
  HWY_DYNAMIC_DISPATCH(decode_any)
  ({fast_pool(job.pool, plan, job.scales), job.slots.empty() ? nullptr : job.slots.data(),
    job.first.value, job.out.rows, job.out.data, bytes_of(job.out.dtype, job.out.row_stride),
    job.out.dtype},
   job);
}

RequantReport requantize_fast(const RequantJob& job) {
  const RowPlan from(job.src.layout, job.src.page_size);
  const RowPlan to(job.dst.layout, job.dst.page_size);
  const auto count = static_cast<std::int64_t>(job.src_slots.size());
  std::vector<float> scratch(2 * static_cast<std::size_t>(from.elems));
  RequantReport report;
  HWY_DYNAMIC_DISPATCH(requant_any)
  ({fast_pool(job.src, from, job.src_scales), job.src_slots.data(), 0, count, nullptr, 0,
    DType::f32},
   {fast_pool(job.dst, to, job.dst_scales), job.dst_slots.data(), 0, count, nullptr, 0, DType::f32},
   scratch.data(), scratch.data() + from.elems, report, job);
  return report;
}

const char* codec_simd_target() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace lathe
#endif  // HWY_ONCE
