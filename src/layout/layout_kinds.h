// The kinds of cache layouts, one row each: what a layout stores and what it is for. CacheLayout
// (layout/layout.h) computes sizes and offsets from a row; the planner and the kernels ask which
// layouts hold an attention problem's keys (layouts_holding()). docs/howto/add-a-layout.md lists
// what else a new kind needs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "base/enum.h"

namespace lathe {

/// In the order of kLayoutRows.
#define LATHE_LAYOUT_KINDS(X) \
  X(mla_bf16) X(mla_fp8) X(mla_fp8_block) X(mla_fp4) X(v4_fp8) X(index_fp8) X(gqa_bf16) X(gqa_fp8)
LATHE_ENUM(LayoutKind, LATHE_LAYOUT_KINDS)

/// The form of the keys in a cache.
///   latent      a latent and a rotary part for all heads; the value is the latent (MLA)
///   latent_row  a latent and a rotary part for all heads; the value is both (DeepSeek V4)
///   per_head    keys and values of each KV head (grouped-query attention)
///   index       the indexer's keys
#define LATHE_KEY_FORMS(X) X(latent) X(latent_row) X(per_head) X(index)
LATHE_ENUM(KeyForm, LATHE_KEY_FORMS)

/// What a part of a token's record holds. `nope` and `rope` are the latent and the rotary part of a
/// latent cache; `key` and `value` are the two parts of a grouped-query cache (`key` is also the
/// indexer's key); `scale` holds one scale per tile; `pad` bytes have no meaning.
#define LATHE_PART_ROLES(X) X(nope) X(rope) X(key) X(value) X(scale) X(pad)
LATHE_ENUM(PartRole, LATHE_PART_ROLES)

/// How stored numbers are scaled. amax is the largest finite magnitude in a tile.
// clang-format off
#define LATHE_SCALE_POLICY_LIST(X)                                                                    \
  X(none, "stored as they are")                                                                       \
  X(per_tensor, "one scale for the whole pool; 1 unless a checkpoint gives another")             \
  X(pow2_ceil, "f32 per tile, 2^ceil(log2(max(amax, 1e-4) / 448)); all readers agree on every bit")   \
  X(raw_f32, "f32 per tile, max(amax, 1e-4) / 448; readers that truncate scales are up to 2x wrong")  \
  X(ue8m0, "an exponent byte per tile, as pow2_ceil; mla_fp4: 2^ceil(log2(max(amax / 6, 1e-10)))")
// clang-format on
LATHE_ENUM_WITH_TEXT(ScalePolicy, LATHE_SCALE_POLICY_LIST)

/// The free dimensions of a layout. A dimension that the kind does not have is 0.
struct LayoutDims {
  std::int32_t nope = 0;        // latent layouts: latent width (512; v4: 448)
  std::int32_t rope = 0;        // latent layouts: rotary width (64), may be 0
  std::int32_t dim = 0;         // index_fp8: key width (128)
  std::int32_t kv_heads = 0;    // gqa
  std::int32_t head_dim = 0;    // gqa: key width per head
  std::int32_t v_head_dim = 0;  // gqa: value width per head

  constexpr bool operator==(const LayoutDims&) const = default;
};

/// A dimension that a kind has, and the values that it may have.
struct DimRule {
  std::string_view key;  // in a serialised layout
  std::int32_t LayoutDims::*field = nullptr;
  std::int32_t standard = 0;  // of the models that the kind is for
  // The parts of the kind can be cut into multiples of this. Multiples of 16 elements keep parts of
  // fp8 and bf16 16-byte aligned in a record, which every vector load relies on.
  std::int32_t multiple = 1;
  std::int32_t min = 1;
  std::int32_t max = 16384;
};

/// A part of a token's record. Its number of elements follows from the role and the dims; a scale
/// part has one for each tile of the e4m3 and e2m1 parts.
struct PartRow {
  PartRole role = PartRole::pad;
  DType dtype = DType::u8;
  std::int32_t plane = 0;
  std::int32_t multiple = 1;  // pad: rounds its plane's record up to a multiple of this many bytes
};

inline constexpr std::int32_t kTileIsKey = -1;  // LayoutRow::tile: a key's elements share a scale

/// All that distinguishes a kind of layout from others.
struct LayoutRow {
  LayoutKind kind = LayoutKind::mla_bf16;
  EnumSet<KeyForm> holds;
  // Order in which --kv-layout auto tries the layouts of a form: the precision of the checkpoint
  // first, then lower ones. Different for any two layouts of one form.
  std::int32_t order = 0;
  ScalePolicy policy = ScalePolicy::none;  // where none is named
  EnumSet<ScalePolicy> policies;           // all that the kind can have
  std::int32_t tile = 0;                   // elements that share a scale; 0: the kind has no tiles
  std::array<DimRule, 3> dims{};           // in the order of a serialised layout
  std::array<PartRow, 4> parts{};          // in the order of a token's record
  // A page's stride is a multiple of plane 0's record, so a GPU can gather records by their number
  // in the pool.
  bool pages_of_records = false;
};

namespace layout_rows {
constexpr std::array<DimRule, 3> latent_dims(std::int32_t nope, std::int32_t multiple) {
  return {{{"nope", &LayoutDims::nope, nope, multiple, multiple},
           {"rope", &LayoutDims::rope, 64, 16, 0}}};
}
inline constexpr std::array<DimRule, 3> kIndexDims = {{{"dim", &LayoutDims::dim, 128, 16, 16}}};
inline constexpr std::array<DimRule, 3> kHeadDims = {
    {{"kv_heads", &LayoutDims::kv_heads, 8, 1, 1, 1024},
     {"head_dim", &LayoutDims::head_dim, 128, 16, 16, 1024},
     {"v_head_dim", &LayoutDims::v_head_dim, 128, 16, 16, 1024}}};

constexpr auto table() {
  using enum LayoutKind;
  using enum PartRole;
  using P = ScalePolicy;
  return std::array{
      LayoutRow{.kind = mla_bf16,
                .holds = {KeyForm::latent, KeyForm::latent_row},
                .order = 1,
                .policy = P::none,
                .policies = {P::none},
                .dims = latent_dims(512, 16),
                .parts = {{{nope, DType::bf16}, {rope, DType::bf16}}}},
      LayoutRow{.kind = mla_fp8,
                .holds = {KeyForm::latent},
                .order = 3,
                .policy = P::per_tensor,
                .policies = {P::per_tensor},
                .dims = latent_dims(512, 16),
                .parts = {{{nope, DType::e4m3}, {rope, DType::e4m3}}}},
      LayoutRow{.kind = mla_fp8_block,
                .holds = {KeyForm::latent},
                .order = 2,
                .policy = P::pow2_ceil,
                .policies = {P::pow2_ceil, P::raw_f32},
                .tile = 128,
                .dims = latent_dims(512, 128),
                .parts = {{{nope, DType::e4m3}, {scale, DType::f32}, {rope, DType::bf16}}}},
      LayoutRow{.kind = mla_fp4,
                .holds = {KeyForm::latent},
                .order = 4,
                .policy = P::ue8m0,
                .policies = {P::ue8m0},
                .tile = 16,
                .dims = latent_dims(512, 16),
                .parts = {{{nope, DType::e2m1}, {rope, DType::e2m1}, {scale, DType::ue8m0, 1}}}},
      // DeepSeek V4 was trained with this cache (quantisation-aware), so it is V4's own precision.
      LayoutRow{.kind = v4_fp8,
                .holds = {KeyForm::latent_row},
                .order = 0,
                .policy = P::ue8m0,
                .policies = {P::ue8m0},
                .tile = 64,
                .dims = latent_dims(448, 64),
                .parts = {{{nope, DType::e4m3},
                           {rope, DType::bf16},
                           {scale, DType::ue8m0, 1},
                           {pad, DType::u8, 1, 8}}},
                .pages_of_records = true},
      LayoutRow{.kind = index_fp8,
                .holds = {KeyForm::index},
                .order = 0,
                .policy = P::pow2_ceil,
                .policies = {P::pow2_ceil, P::raw_f32},
                .tile = kTileIsKey,
                .dims = kIndexDims,
                .parts = {{{key, DType::e4m3}, {scale, DType::f32, 1}}}},
      LayoutRow{.kind = gqa_bf16,
                .holds = {KeyForm::per_head},
                .order = 1,
                .policy = P::none,
                .policies = {P::none},
                .dims = kHeadDims,
                .parts = {{{key, DType::bf16}, {value, DType::bf16, 1}}}},
      LayoutRow{.kind = gqa_fp8,
                .holds = {KeyForm::per_head},
                .order = 3,
                .policy = P::per_tensor,
                .policies = {P::per_tensor},
                .dims = kHeadDims,
                .parts = {{{key, DType::e4m3}, {value, DType::e4m3, 1}}}},
  };
}
}  // namespace layout_rows

inline constexpr auto kLayoutRows = layout_rows::table();

constexpr const LayoutRow& layout_row(LayoutKind kind) {
  return kLayoutRows[static_cast<std::size_t>(kind)];
}

namespace layout_rows {
constexpr bool in_order() {
  for (const LayoutKind kind : enum_values<LayoutKind>()) {
    if (layout_row(kind).kind != kind) return false;
  }
  return true;
}
constexpr bool complete(const LayoutRow& row) {
  for (const LayoutRow& other : kLayoutRows) {
    const bool twin = other.order == row.order && !(other.holds & row.holds).empty();
    if (twin && other.kind != row.kind) return false;
  }
  return !row.holds.empty() && row.policies.contains(row.policy);
}
}  // namespace layout_rows

static_assert(kLayoutRows.size() == enum_count<LayoutKind> && layout_rows::in_order(),
              "a row for each kind, in the order of LATHE_LAYOUT_KINDS");
static_assert(std::ranges::all_of(kLayoutRows, layout_rows::complete),
              "a row holds keys, its policy is one of its policies, and its order is its own");

constexpr std::span<const DimRule> dim_rules(LayoutKind kind) {
  const auto& dims = layout_row(kind).dims;
  std::size_t count = 0;
  while (count < dims.size() && dims[count].field != nullptr) ++count;
  return {dims.data(), count};
}

/// Dims of the models that the kind is for (gqa: 8 heads of 128).
constexpr LayoutDims default_dims(LayoutKind kind) {
  LayoutDims dims;
  for (const DimRule& rule : dim_rules(kind)) dims.*rule.field = rule.standard;
  return dims;
}
constexpr ScalePolicy default_policy(LayoutKind kind) { return layout_row(kind).policy; }

/// The layouts that hold keys of a form.
constexpr EnumSet<LayoutKind> layouts_holding(KeyForm form) {
  EnumSet<LayoutKind> out;
  for (const LayoutRow& row : kLayoutRows) {
    if (row.holds.contains(form)) out.insert(row.kind);
  }
  return out;
}

/// Latent layouts hold one row per token for all heads (nope, rope).
constexpr bool is_latent(LayoutKind kind) {
  return layout_row(kind).holds.contains(KeyForm::latent) ||
         layout_row(kind).holds.contains(KeyForm::latent_row);
}
constexpr bool is_gqa(LayoutKind kind) {
  return layout_row(kind).holds.contains(KeyForm::per_head);
}

}  // namespace lathe
