#include "layout/codec/codec_ref.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/float_formats.h"

namespace lathe {
namespace {

float input(const RowsView& rows, std::int64_t r, std::int64_t c) {
  const std::byte* at = rows.row(r) + bytes_of(rows.dtype, c);
  if (rows.dtype == DType::bf16) {
    bf16 x;
    std::memcpy(&x, at, sizeof x);
    return to_f32(x);
  }
  float x;
  std::memcpy(&x, at, sizeof x);
  return x;
}

void output(const MutableRowsView& out, std::int64_t r, std::int64_t c, float x) {
  std::byte* at = out.row(r) + bytes_of(out.dtype, c);
  if (out.dtype == DType::bf16) {
    const bf16 b = to_bf16(x);
    std::memcpy(at, &b, sizeof b);
  } else {
    std::memcpy(at, &x, sizeof x);
  }
}

// The bytes of a part of the token in `slot`.
template <class Byte>
Byte* find(const BasicPoolView<Byte>& pool, const PlacedPart& part, Slot slot) {
  return pool.data + std::int64_t{page_of(slot, pool.page_size).value} * pool.page_stride +
         part.start + std::int64_t{offset_in_page(slot, pool.page_size)} * part.step;
}

float largest_finite(const RowsView& rows, std::int64_t r, std::int64_t first, std::int64_t n) {
  float amax = 0;
  for (std::int64_t c = first; c < first + n; ++c) {
    const float x = std::fabs(input(rows, r, c));
    if (std::isfinite(x)) amax = std::max(amax, x);
  }
  return amax;
}

void put_code(std::byte* values, DType dtype, std::int64_t i, float x) {
  if (dtype == DType::e4m3) {
    values[i] = std::byte{to_e4m3(x).bits};
    return;
  }
  const unsigned nibble = to_e2m1(x).bits;
  const unsigned old = std::to_integer<unsigned>(values[i / 2]);
  values[i / 2] =
      static_cast<std::byte>(i % 2 == 0 ? (old & 0xf0u) | nibble : (old & 0x0fu) | nibble << 4);
}

float get_code(const std::byte* values, DType dtype, std::int64_t i) {
  if (dtype == DType::e4m3) return to_f32(e4m3{std::to_integer<std::uint8_t>(values[i])});
  const unsigned pair = std::to_integer<unsigned>(values[i / 2]);
  return to_f32(e2m1{static_cast<std::uint8_t>(i % 2 == 0 ? pair & 15u : pair >> 4)});
}

void put_scale(std::byte* scales, ScaleSource source, std::int64_t tile, float s) {
  if (source == ScaleSource::tile_f32) {
    std::memcpy(scales + tile * 4, &s, 4);
  } else {
    scales[tile] = std::byte{to_ue8m0_ceil(s).bits};
  }
}

float get_scale(const std::byte* scales, ScaleSource source, std::int64_t tile) {
  if (source == ScaleSource::tile_ue8m0) {
    return to_f32(ue8m0{std::to_integer<std::uint8_t>(scales[tile])});
  }
  float s;
  std::memcpy(&s, scales + tile * 4, 4);
  return s;
}

void encode_plain(const EncodeJob& job, std::int64_t r, const ValueRun& run, std::byte* values) {
  if (job.rows.dtype == DType::bf16) {
    std::memcpy(values, job.rows.row(r) + bytes_of(DType::bf16, run.first),
                static_cast<std::size_t>(run.values.bytes));
    return;
  }
  for (std::int64_t i = 0; i < run.elems; ++i) {
    const bf16 b = to_bf16(input(job.rows, r, run.first + i));
    std::memcpy(values + 2 * i, &b, sizeof b);
  }
}

void encode_run(const EncodeJob& job, const RowPlan& plan, std::int64_t r, Slot slot,
                const ValueRun& run) {
  std::byte* values = find(job.pool, run.values, slot);
  if (run.source == ScaleSource::plain) return encode_plain(job, r, run, values);
  const std::int64_t tile = run.tile == 0 ? run.elems : run.tile;
  for (std::int64_t t = 0; t * tile < run.elems; ++t) {
    float s = tensor_scale(run.source, job.scales);
    if (run.tile != 0) {
      s = tile_scale(largest_finite(job.rows, r, run.first + t * tile, tile), run.dtype,
                     plan.policy);
      put_scale(find(job.pool, run.scales, slot), run.source, run.first_tile + t, s);
    }
    const float inverse = 1.0f / s;
    for (std::int64_t i = t * tile; i < (t + 1) * tile; ++i) {
      put_code(values, run.dtype, i, input(job.rows, r, run.first + i) * inverse);
    }
  }
}

void decode_plain(const MutableRowsView& out, std::int64_t r, const ValueRun& run,
                  const std::byte* values) {
  if (out.dtype == DType::bf16) {
    std::memcpy(out.row(r) + bytes_of(DType::bf16, run.first), values,
                static_cast<std::size_t>(run.values.bytes));
    return;
  }
  for (std::int64_t i = 0; i < run.elems; ++i) {
    bf16 b;
    std::memcpy(&b, values + 2 * i, sizeof b);
    output(out, r, run.first + i, to_f32(b));
  }
}

void decode_run(const DecodeJob& job, std::int64_t r, Slot slot, const ValueRun& run) {
  const std::byte* values = find(job.pool, run.values, slot);
  if (run.source == ScaleSource::plain) return decode_plain(job.out, r, run, values);
  for (std::int64_t i = 0; i < run.elems; ++i) {
    const float s = run.tile == 0 ? tensor_scale(run.source, job.scales)
                                  : get_scale(find(job.pool, run.scales, slot), run.source,
                                              run.first_tile + i / run.tile);
    output(job.out, r, run.first + i, scaled_value(get_code(values, run.dtype, i), s));
  }
}

// Decodes one slot to f32.
void decode_one(const ConstPoolView& pool, const TensorScales& scales, Slot slot,
                std::vector<float>& row) {
  const auto n = static_cast<std::int64_t>(row.size());
  const MutableRowsView view{reinterpret_cast<std::byte*>(row.data()), DType::f32, 1, n, n};
  decode_reference({pool, std::span(&slot, 1), slot, view, scales});
}

void copy_to_block(const RequantJob& job, const RowPlan& from, const RowPlan& to, Slot src,
                   Slot dst) {
  const ValueRun& nope = to.runs[0];
  std::memcpy(find(job.dst, nope.values, dst), find(job.src, from.runs[0].values, src),
              static_cast<std::size_t>(nope.values.bytes));
  for (std::int64_t t = 0; t < nope.tiles(); ++t) {
    put_scale(find(job.dst, nope.scales, dst), nope.source, t, job.src_scales.key);
  }
  if (to.run_count == 1) return;
  const std::byte* codes = find(job.src, from.runs[1].values, src);
  std::byte* rope = find(job.dst, to.runs[1].values, dst);
  for (std::int64_t i = 0; i < to.runs[1].elems; ++i) {
    const bf16 b = to_bf16(scaled_value(get_code(codes, DType::e4m3, i), job.src_scales.key));
    std::memcpy(rope + 2 * i, &b, sizeof b);
  }
}

}  // namespace

float scaled_value(float code_value, float scale) {
  const float v = code_value * scale;
  if (!std::isnan(v)) return v;
  return std::bit_cast<float>((std::bit_cast<std::uint32_t>(code_value) & 0x80000000u) |
                              0x7fc00000u);
}

void encode_reference(const EncodeJob& job) {
  const RowPlan plan(job.pool.layout, job.pool.page_size);
  for (std::int64_t r = 0; r < job.rows.rows; ++r) {
    const Slot slot = job.slots[static_cast<std::size_t>(r)];
    if (slot.is_hole()) continue;
    for (int i = 0; i < plan.run_count; ++i) {
      encode_run(job, plan, r, slot, plan.runs[static_cast<std::size_t>(i)]);
    }
    std::byte* pad = find(job.pool, plan.pad, slot);
    std::fill(pad, pad + plan.pad.bytes, std::byte{0});
  }
}

void decode_reference(const DecodeJob& job) {
  const RowPlan plan(job.pool.layout, job.pool.page_size);
  for (std::int64_t r = 0; r < job.out.rows; ++r) {
    const Slot slot = job.slot(r);
    if (slot.is_hole()) {
      for (std::int64_t c = 0; c < plan.elems; ++c) output(job.out, r, c, 0.0f);
      continue;
    }
    for (int i = 0; i < plan.run_count; ++i) {
      decode_run(job, r, slot, plan.runs[static_cast<std::size_t>(i)]);
    }
  }
}

RequantReport requantize_reference(const RequantJob& job) {
  const RowPlan from(job.src.layout, job.src.page_size);
  const RowPlan to(job.dst.layout, job.dst.page_size);
  std::vector<float> before(static_cast<std::size_t>(from.elems));
  std::vector<float> after(before.size());
  RequantReport report;
  for (std::size_t r = 0; r < job.src_slots.size(); ++r) {
    const Slot src = job.src_slots[r];
    const Slot dst = job.dst_slots[r];
    if (src.is_hole() || dst.is_hole()) continue;
    decode_one(job.src, job.src_scales, src, before);
    if (job.dst.layout.kind() == LayoutKind::mla_fp8_block) {
      copy_to_block(job, from, to, src, dst);
    } else {
      const auto n = static_cast<std::int64_t>(before.size());
      const RowsView row{reinterpret_cast<const std::byte*>(before.data()), DType::f32, 1, n, n};
      encode_reference({row, std::span(&dst, 1), job.dst, job.dst_scales});
      // 464 is half way from 448 to 480, which e4m3 does not have; larger values saturate.
      const float inverse = 1.0f / job.dst_scales.key;
      report.saturated += std::count_if(before.begin(), before.end(),
                                        [&](float x) { return std::fabs(x * inverse) > 464.0f; });
    }
    decode_one(job.dst, job.dst_scales, dst, after);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const float error = std::fabs(before[i] - after[i]);
      if (before[i] == after[i] || !(error > report.worst_abs_error)) continue;
      report.worst_abs_error = error;
      report.worst_slot = src;
    }
  }
  return report;
}

}  // namespace lathe
