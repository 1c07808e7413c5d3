#include "layout/codec/codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "layout/codec/codec_fast.h"
#include "layout/codec/codec_plan.h"
#include "layout/codec/codec_ref.h"

namespace lathe {
namespace {

bool is_power_of_two(float s) { return (std::bit_cast<std::uint32_t>(s) & 0x7fffffu) == 0; }

Result<void> check_pair(const CacheLayout& src, const CacheLayout& dst,
                        const TensorScales& src_scales) {
  const bool to_block =
      src.kind() == LayoutKind::mla_fp8 && dst.kind() == LayoutKind::mla_fp8_block;
  const bool to_plain =
      src.kind() == LayoutKind::mla_fp8_block && dst.kind() == LayoutKind::mla_fp8;
  if (!to_block && !to_plain) {
    return Error{ErrorCode::unsupported, "requantize",
                 "mla_fp8 to mla_fp8_block, or mla_fp8_block to mla_fp8",
                 fmt::format("{} to {}", src.name(), dst.name()),
                 "decode_rows and encode_rows go between any two layouts"};
  }
  if (src.dims() != dst.dims()) {
    return Error{
        ErrorCode::invalid_argument, "dst.layout",
        fmt::format("the dims of src, nope {} and rope {}", src.dims().nope, src.dims().rope),
        fmt::format("nope {} and rope {}", dst.dims().nope, dst.dims().rope), ""};
  }
  if (to_block && dst.scale_policy() == ScalePolicy::pow2_ceil &&
      !is_power_of_two(src_scales.key)) {
    return Error{ErrorCode::unsupported, "src_scales.key",
                 "a power of two, because the destination's tile scales are pow2_ceil",
                 fmt::format("{}", src_scales.key),
                 "make the destination scale=raw_f32, or decode and encode"};
  }
  return {};
}

}  // namespace

Result<void> check_requantize(const ConstPoolView& src, std::size_t src_slots,
                              const ConstPoolView& dst, std::size_t dst_slots,
                              const TensorScales& src_scales, const TensorScales& dst_scales) {
  if (auto ok = check_pool("src", src); !ok) return ok;
  if (auto ok = check_pool("dst", dst); !ok) return ok;
  if (auto ok = check_scales("src_scales", src_scales); !ok) return ok;
  if (auto ok = check_scales("dst_scales", dst_scales); !ok) return ok;
  if (auto ok = check_pair(src.layout, dst.layout, src_scales); !ok) return ok;
  if (src_slots == dst_slots) return {};
  return Error{ErrorCode::invalid_argument, "dst_slots",
               fmt::format("{} slots, as many as src_slots", src_slots),
               fmt::format("{}", dst_slots), ""};
}

Result<void> encode_rows(const RowsView& rows, std::span<const Slot> slots, const PoolView& pool,
                         const TensorScales& scales, CodecPath path) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  const auto count = static_cast<std::int64_t>(slots.size());
  if (auto ok = check_rows("rows", rows, count, pool.layout.row_elems()); !ok) return ok;
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (auto ok = check_slots("slots", slots, pool); !ok) return ok;
  const EncodeJob job{rows, slots, pool, scales};
  path == CodecPath::fast ? encode_fast(job) : encode_reference(job);
  return {};
}

Result<void> decode_rows(const ConstPoolView& pool, Slot first, const MutableRowsView& out,
                         const TensorScales& scales, CodecPath path) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  if (out.rows < 0) {
    return Error{ErrorCode::invalid_argument, "out.rows", "0 or more", fmt::format("{}", out.rows),
                 ""};
  }
  if (auto ok = check_rows("out", read_only(out), out.rows, pool.layout.row_elems()); !ok)
    return ok;
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (out.rows == 0) return {};
  // A slot number is an int32, even if the pool has more slots.
  const std::int64_t end = std::min(pool.slots(), std::int64_t{1} << 31);
  if (!pool.holds(first) || out.rows > end - first.value) {
    return Error{ErrorCode::out_of_range, "first",
                 fmt::format("{} slots within 0 to {}", out.rows, end - 1),
                 fmt::format("{} slots from {}", out.rows, first.value),
                 "gather_decode reads slots in any order"};
  }
  const DecodeJob job{pool, {}, first, out, scales};
  path == CodecPath::fast ? decode_fast(job) : decode_reference(job);
  return {};
}

Result<void> gather_decode(const ConstPoolView& pool, std::span<const Slot> slots,
                           const MutableRowsView& out, const TensorScales& scales, CodecPath path) {
  if (auto ok = check_pool("pool", pool); !ok) return ok;
  const auto count = static_cast<std::int64_t>(slots.size());
  if (auto ok = check_rows("out", read_only(out), count, pool.layout.row_elems()); !ok) return ok;
  if (auto ok = check_scales("scales", scales); !ok) return ok;
  if (auto ok = check_slots("slots", slots, pool); !ok) return ok;
  if (slots.empty()) return {};
  const DecodeJob job{pool, slots, Slot(), out, scales};
  path == CodecPath::fast ? decode_fast(job) : decode_reference(job);
  return {};
}

Result<RequantReport> requantize(const ConstPoolView& src, std::span<const Slot> src_slots,
                                 const PoolView& dst, std::span<const Slot> dst_slots,
                                 const TensorScales& src_scales, const TensorScales& dst_scales,
                                 CodecPath path) {
  if (auto ok =
          check_requantize(src, src_slots.size(), dst, dst_slots.size(), src_scales, dst_scales);
      !ok) {
    return ok.error();
  }
  if (auto ok = check_slots("src_slots", src_slots, src); !ok) return ok.error();
  if (auto ok = check_slots("dst_slots", dst_slots, dst); !ok) return ok.error();
  const RequantJob job{src, src_slots, dst, dst_slots, src_scales, dst_scales};
  return path == CodecPath::fast ? requantize_fast(job) : requantize_reference(job);
}

}  // namespace lathe
