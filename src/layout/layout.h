// CacheLayout: the arrangement of a KV cache's bytes, as a value. Sizes, strides and offsets are
// computed here, from the kind's row in layout/layout_kinds.h. Kernels that repeat a number as a
// compile-time constant compare it with CacheLayout in a static_assert.
//
// A page of P tokens consists of one or two planes, one after the other. A plane has a record of
// fixed size for each token: the record of token i in plane p is at plane_start(P, p) + i *
// plane_bytes(p). A part is a run of elements of one type in a record.
//
//   mla_fp8_block, one plane      v4_fp8, two planes
//   |nope|scale|rope| token 0     |nope|rope| token 0      |
//   |nope|scale|rope| token 1     |nope|rope| token 1 ...  | plane 0
//   ...                           |scales|pad| token 0 ... | plane 1, then padding to the stride
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/enum.h"
#include "base/result.h"
#include "layout/layout_kinds.h"

namespace lathe {

/// Smallest amax that fp8 layouts use for a scale, so a tile of zeros has a normal scale.
inline constexpr float kAmaxFloor = 1e-4f;
/// Smallest amax / 6 that mla_fp4 uses for a scale.
inline constexpr float kFp4ScaleFloor = 1e-10f;

inline constexpr std::int32_t kMaxPageSize = 65536;

/// A run of `elems` elements in every token's record of a plane.
struct Part {
  PartRole role = PartRole::pad;
  DType dtype = DType::u8;
  std::int32_t elems = 0;
  std::int32_t plane = 0;
  std::int32_t offset = 0;  // bytes from the start of the token's record in that plane

  constexpr std::int32_t bytes() const { return static_cast<std::int32_t>(bytes_of(dtype, elems)); }
  constexpr bool operator==(const Part&) const = default;
};

class CacheLayout {
 public:
  /// The layout of `kind` with these dims and policy; without them, the defaults. Precondition:
  /// make() accepts them. Use make() for values from users.
  constexpr explicit CacheLayout(LayoutKind kind) : CacheLayout(kind, default_dims(kind)) {}
  constexpr CacheLayout(LayoutKind kind, LayoutDims dims)
      : CacheLayout(kind, dims, default_policy(kind)) {}
  constexpr CacheLayout(LayoutKind kind, LayoutDims dims, ScalePolicy policy);

  /// Errors: a dim out of its range, or not a multiple of what the kind needs, or one that the kind
  /// does not have; a policy that the kind does not have.
  static Result<CacheLayout> make(LayoutKind kind, LayoutDims dims, ScalePolicy policy);
  /// Reads what serialize() writes. Missing keys have their defaults, so "mla_fp8" alone is a
  /// layout. The default of v_head_dim is head_dim.
  static Result<CacheLayout> parse(std::string_view text);
  /// "mla_fp8_block(nope=512,rope=64,scale=pow2_ceil)"
  std::string serialize() const;
  /// XXH3-64 of serialize(): equal on all machines and builds.
  std::uint64_t hash() const;

  constexpr LayoutKind kind() const { return kind_; }
  constexpr std::string_view name() const { return lathe::name(kind_); }
  constexpr const LayoutDims& dims() const { return dims_; }
  constexpr ScalePolicy scale_policy() const { return policy_; }
  /// Elements that share a scale; 0 if the kind has no tiles.
  constexpr std::int32_t scale_tile() const { return scale_tile_; }

  constexpr int part_count() const { return part_count_; }
  constexpr const Part& part(int i) const { return parts_[static_cast<std::size_t>(i)]; }
  /// The part with that role, or nullptr.
  constexpr const Part* find(PartRole role) const {
    for (int i = 0; i < part_count_; ++i) {
      if (part(i).role == role) return &parts_[static_cast<std::size_t>(i)];
    }
    return nullptr;
  }

  constexpr int plane_count() const { return plane_count_; }
  /// Bytes of a token's record in a plane.
  constexpr std::int32_t plane_bytes(int plane) const {
    return plane_bytes_[static_cast<std::size_t>(plane)];
  }
  /// Bytes of a token in all planes, without page padding.
  constexpr std::int32_t bytes_per_token() const { return plane_bytes_[0] + plane_bytes_[1]; }
  /// page_stride() is a multiple of this many bytes.
  constexpr std::int32_t page_align() const { return page_align_; }
  constexpr std::int64_t page_stride(std::int32_t page_size) const {
    const std::int64_t raw = std::int64_t{page_size} * bytes_per_token();
    return (raw + page_align_ - 1) / page_align_ * page_align_;
  }
  /// Byte offset of a plane in a page of page_size tokens.
  constexpr std::int64_t plane_start(std::int32_t page_size, int plane) const {
    return plane == 0 ? 0 : std::int64_t{page_size} * plane_bytes_[0];
  }
  /// Byte offset in its page of `part` of the token at `index`.
  constexpr std::int64_t offset_of(const Part& part, std::int32_t page_size,
                                   std::int32_t index) const {
    return plane_start(page_size, part.plane) + std::int64_t{index} * plane_bytes(part.plane) +
           part.offset;
  }

  /// Elements of a decoded row: nope then rope; or key; or all heads' keys, then all heads' values.
  constexpr std::int32_t row_elems() const {
    std::int32_t n = 0;
    for (int i = 0; i < part_count_; ++i) n += holds_values(part(i)) ? part(i).elems : 0;
    return n;
  }
  /// True if the whole row has one number format, so that a kernel can compute in it.
  constexpr bool homogeneous() const {
    const Part* first = nullptr;
    for (int i = 0; i < part_count_; ++i) {
      if (!holds_values(part(i))) continue;
      if (first == nullptr) first = &parts_[static_cast<std::size_t>(i)];
      if (part(i).dtype != first->dtype) return false;
    }
    return true;
  }
  /// Number format of the first part (nope or key).
  constexpr DType value_dtype() const { return part(0).dtype; }

  constexpr bool operator==(const CacheLayout&) const = default;

 private:
  static constexpr bool holds_values(const Part& p) {
    return p.role != PartRole::scale && p.role != PartRole::pad;
  }
  constexpr std::int32_t elems_of(const PartRow& part) const;
  constexpr std::int32_t scaled_elems() const;
  constexpr void add(const PartRow& row) {
    const std::int32_t elems = elems_of(row);
    if (elems == 0) return;
    Part& p = parts_[static_cast<std::size_t>(part_count_++)];
    std::int32_t& record = plane_bytes_[static_cast<std::size_t>(row.plane)];
    p = {row.role, row.dtype, elems, row.plane, record};
    record += p.bytes();
    if (row.plane + 1 > plane_count_) plane_count_ = row.plane + 1;
  }

  LayoutKind kind_;
  ScalePolicy policy_;
  LayoutDims dims_;
  std::int32_t scale_tile_ = 0;
  std::int32_t page_align_ = 1;
  int part_count_ = 0;
  int plane_count_ = 0;
  std::array<Part, 4> parts_{};
  std::array<std::int32_t, 2> plane_bytes_{};
};

/// Errors: a page size outside 1 to kMaxPageSize.
Result<void> check_page_size(std::int32_t page_size);

constexpr std::int32_t CacheLayout::elems_of(const PartRow& part) const {
  switch (part.role) {
    case PartRole::nope:
      return dims_.nope;
    case PartRole::rope:
      return dims_.rope;
    case PartRole::key:  // one of the two is 0
      return dims_.dim + dims_.kv_heads * dims_.head_dim;
    case PartRole::value:
      return dims_.kv_heads * dims_.v_head_dim;
    case PartRole::scale:
      return scaled_elems() / scale_tile_;
    case PartRole::pad: {
      const std::int32_t record = plane_bytes(part.plane);
      return (part.multiple - record % part.multiple) % part.multiple;
    }
  }
  return 0;
}

constexpr std::int32_t CacheLayout::scaled_elems() const {
  std::int32_t n = 0;
  for (const PartRow& part : layout_row(kind_).parts) {
    if (part.dtype == DType::e4m3 || part.dtype == DType::e2m1) n += elems_of(part);
  }
  return n;
}

constexpr CacheLayout::CacheLayout(LayoutKind kind, LayoutDims dims, ScalePolicy policy)
    : kind_(kind), policy_(policy), dims_(dims) {
  const LayoutRow& row = layout_row(kind);
  scale_tile_ = row.tile == kTileIsKey ? dims.dim : row.tile;
  for (const PartRow& part : row.parts) add(part);
  if (row.pages_of_records) page_align_ = plane_bytes_[0];
}

static_assert(CacheLayout(LayoutKind::mla_bf16).bytes_per_token() == 1152);
static_assert(CacheLayout(LayoutKind::mla_fp8).bytes_per_token() == 576);
static_assert(CacheLayout(LayoutKind::mla_fp8_block).bytes_per_token() == 656);
static_assert(CacheLayout(LayoutKind::mla_fp4).bytes_per_token() == 324);
static_assert(CacheLayout(LayoutKind::mla_fp4).plane_bytes(0) == 288);
static_assert(CacheLayout(LayoutKind::v4_fp8).bytes_per_token() == 584);
static_assert(CacheLayout(LayoutKind::v4_fp8).page_stride(256) == 149760);
static_assert(CacheLayout(LayoutKind::v4_fp8).page_stride(64) == 37440);
static_assert(CacheLayout(LayoutKind::v4_fp8).page_stride(2) == 1728);
static_assert(CacheLayout(LayoutKind::index_fp8).bytes_per_token() == 132);
static_assert(CacheLayout(LayoutKind::index_fp8).page_stride(64) == 8448);
static_assert(CacheLayout(LayoutKind::gqa_bf16).bytes_per_token() == 2 * 8 * 128 * 2);
static_assert(CacheLayout(LayoutKind::gqa_fp8).bytes_per_token() == 2 * 8 * 128);

}  // namespace lathe
