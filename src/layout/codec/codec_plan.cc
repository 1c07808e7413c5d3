#include "layout/codec/codec_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/float_formats.h"

namespace lathe {
namespace {

// Codes that share a scale are whole tiles of their part: codecs would leave out the rest. Those of
// e2m1 are 16, a vector's.
constexpr bool has_whole_tiles(const LayoutRow& row) {
  for (const PartRow& part : row.parts) {
    const bool coded = part.dtype == DType::e4m3 || part.dtype == DType::e2m1;
    if (!coded || row.tile <= 0) continue;
    if (part.dtype == DType::e2m1 && row.tile != 16) return false;
    for (const DimRule& rule : dim_rules(row.kind)) {
      const bool own = part.role == PartRole::nope   ? rule.field == &LayoutDims::nope
                       : part.role == PartRole::rope ? rule.field == &LayoutDims::rope
                                                     : rule.field != &LayoutDims::kv_heads;
      if (own && rule.multiple % row.tile != 0) return false;
    }
  }
  return true;
}
static_assert(std::ranges::all_of(kLayoutRows, has_whole_tiles),
              "the dims of parts with tiles are multiples of the tile; e2m1 has tiles of 16");

PlacedPart placed(const CacheLayout& layout, std::int32_t page_size, const Part& part) {
  return {layout.offset_of(part, page_size, 0), layout.plane_bytes(part.plane), part.bytes()};
}

ScaleSource source_of(const CacheLayout& layout, const Part& part) {
  if (part.dtype == DType::bf16) return ScaleSource::plain;
  if (layout.scale_policy() == ScalePolicy::per_tensor) {
    return part.role == PartRole::value ? ScaleSource::value_tensor : ScaleSource::key_tensor;
  }
  return layout.scale_policy() == ScalePolicy::ue8m0 ? ScaleSource::tile_ue8m0
                                                     : ScaleSource::tile_f32;
}

}  // namespace

RowPlan::RowPlan(const CacheLayout& layout, std::int32_t page_size)
    : policy(layout.scale_policy()), elems(layout.row_elems()), run_count(0) {
  const Part* scale = layout.find(PartRole::scale);
  std::int32_t first = 0;
  std::int32_t tile_number = 0;
  for (int i = 0; i < layout.part_count(); ++i) {
    const Part& part = layout.part(i);
    if (part.role == PartRole::scale) continue;
    if (part.role == PartRole::pad) {
      pad = placed(layout, page_size, part);
      continue;
    }
    ValueRun& run = runs[static_cast<std::size_t>(run_count++)];
    run.dtype = part.dtype;
    run.source = source_of(layout, part);
    run.first = first;
    run.elems = part.elems;
    run.values = placed(layout, page_size, part);
    if (run.source == ScaleSource::tile_f32 || run.source == ScaleSource::tile_ue8m0) {
      run.tile = layout.scale_tile();
      run.first_tile = tile_number;
      run.scales = placed(layout, page_size, *scale);
      tile_number += run.tiles();
    }
    first += part.elems;
  }
}

float tile_scale(float amax, DType dtype, ScalePolicy policy) {
  if (dtype == DType::e2m1) return pow2_ceil(std::max(amax / kE2m1Max, kFp4ScaleFloor));
  const float raw = std::max(amax, kAmaxFloor) / kE4m3Max;
  return policy == ScalePolicy::raw_f32 ? raw : pow2_ceil(raw);
}

Result<void> check_rows(const char* field, const RowsView& rows, std::int64_t count,
                        std::int64_t cols, EnumSet<DType> dtypes) {
  const auto wrong = [&](const char* member, std::string wanted, std::string offered,
                         const char* hint) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}.{}", field, member),
                 std::move(wanted), std::move(offered), hint};
  };
  if (!dtypes.contains(rows.dtype)) {
    return wrong("dtype", "one of " + dtypes.names(), std::string(name(rows.dtype)),
                 "convert the rows first");
  }
  if (rows.rows != count) {
    return wrong("rows", fmt::format("{}", count), fmt::format("{}", rows.rows),
                 "one row for each index");
  }
  if (rows.cols != cols) {
    return wrong("cols", fmt::format("{}", cols), fmt::format("{}", rows.cols),
                 "the width is the layout's row_elems()");
  }
  if (rows.row_stride < rows.cols) {
    return wrong("row_stride", fmt::format("at least {} elements", rows.cols),
                 fmt::format("{}", rows.row_stride), "strides count elements, not bytes");
  }
  if (rows.rows > 0 && rows.data == nullptr) {
    return wrong("data", "a pointer", "null", "");
  }
  const auto align = static_cast<std::uintptr_t>(bits_of(rows.dtype) / 8);
  if (reinterpret_cast<std::uintptr_t>(rows.data) % align != 0) {
    return wrong("data", fmt::format("an address that is a multiple of {}", align),
                 fmt::format("{}", static_cast<const void*>(rows.data)), "");
  }
  return {};
}

Result<void> check_slots(const char* field, std::span<const Slot> slots,
                         const ConstPoolView& pool) {
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].is_hole() || pool.holds(slots[i])) continue;
    return Error{ErrorCode::out_of_range, fmt::format("{}[{}]", field, i),
                 fmt::format("-1 or 0 to {}", pool.slots() - 1), fmt::format("{}", slots[i].value),
                 fmt::format("the pool has {} pages of {} slots", pool.pages, pool.page_size)};
  }
  return {};
}

Result<void> check_pool(const char* field, const ConstPoolView& pool) {
  if (auto ok = check_page_size(pool.page_size); !ok) {
    Error error = ok.error();
    error.field = fmt::format("{}.page_size", field);
    return error;
  }
  const auto wrong = [&](const char* member, std::string wanted, std::string offered) {
    return Error{ErrorCode::invalid_argument, fmt::format("{}.{}", field, member),
                 std::move(wanted), std::move(offered), ""};
  };
  if (pool.pages < 0) return wrong("pages", "0 or more", fmt::format("{}", pool.pages));
  const std::int64_t least = pool.layout.page_stride(pool.page_size);
  if (pool.page_stride < least) {
    return wrong("page_stride",
                 fmt::format("at least {} bytes for {} tokens of {}", least, pool.page_size,
                             pool.layout.name()),
                 fmt::format("{}", pool.page_stride));
  }
  if (pool.pages > 0 && pool.data == nullptr) return wrong("data", "a pointer", "null");
  return {};
}

Result<void> check_scale(const char* field, float scale) {
  // In this form a NaN fails.
  if (scale >= 0x1p-126f && scale <= 0x1p126f) return {};
  return Error{ErrorCode::invalid_argument, field, "a finite scale from 2^-126 to 2^126",
               fmt::format("{}", scale), "1 is a plain cast"};
}

Result<void> check_scales(const char* field, const TensorScales& scales) {
  if (auto ok = check_scale(fmt::format("{}.key", field).c_str(), scales.key); !ok) return ok;
  return check_scale(fmt::format("{}.value", field).c_str(), scales.value);
}

}  // namespace lathe
