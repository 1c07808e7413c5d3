// Work tiles: their M rows and keys, and the location of a key.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/latent/latent_params.h"

namespace lathe::cuda {

struct LatentWorkTile {
  std::int32_t row = 0;      // first row of q
  std::int32_t m_rows = 0;   // rows x heads
  std::int32_t request = 0;  // if a page table is used
  std::int32_t limit = 0;    // dense: keys that the first row sees; each later row sees one more
  std::int32_t keys = 0;     // of the main source
  std::int32_t padded = 0;   // index of the extra source's first key
  std::int32_t extra = 0;
};

__device__ inline std::int32_t listed(const LatentSource& s, std::int32_t row) {
  if (s.lengths == nullptr) return s.width;
  const std::int32_t n = s.lengths[row];
  return n < 0 ? 0 : n < s.width ? n : s.width;
}

__device__ inline LatentWorkTile find_work_tile(const LatentParams& p, std::int32_t work_tile) {
  LatentWorkTile u;
  if (p.dense) {
    u.request = work_tile;
    u.row = p.q_indptr[work_tile];
    const std::int32_t rows = p.q_indptr[work_tile + 1] - u.row;
    u.m_rows = rows * p.heads;
    u.keys = p.kv_lens[work_tile];
    u.limit = u.keys - rows + 1;
    u.padded = u.keys;
  } else {
    u.row = work_tile;
    u.m_rows = p.heads;
    u.keys = listed(p.main, work_tile);
    u.padded = (u.keys + kLatentTile - 1) / kLatentTile * kLatentTile;
    if (p.extra.indices != nullptr) u.extra = listed(p.extra, work_tile);
    if (p.row_request != nullptr) u.request = p.row_request[work_tile];
    if (p.main.table != nullptr && u.request >= 0) u.limit = p.kv_lens[u.request];
  }
  return u;
}

/// A key's slot as loaded: a page and an offset in it, or a slot. Loaded long before its use, so
/// that no thread waits for it.
struct KeySlot {
  static constexpr std::int32_t kSlot = -1, kExtraSlot = -2;

  std::int32_t value = -1;
  std::int32_t offset = 0;  // in page `value`; or kSlot or kExtraSlot
};

/// How the keys of a tile are given.
enum class KeyKind : std::int32_t { none, slot, extra_slot, position, page };

/// Kind of the tile that begins with key `index`. Keys are numbered over the main source, padded to
/// a tile, and then the extra source.
__device__ inline KeyKind key_kind(const LatentParams& p, const LatentWorkTile& u,
                                   std::int32_t index) {
  if (index >= u.padded && u.extra > 0) return KeyKind::extra_slot;
  if (p.main.indices == nullptr) return KeyKind::page;
  return p.main.table == nullptr ? KeyKind::slot : KeyKind::position;
}
/// Slot of key `index`, numbered as for key_kind().
__device__ inline KeySlot key_slot(const LatentParams& p, const LatentWorkTile& u,
                                   std::int32_t index) {
  if (index >= u.padded && u.extra > 0) {
    index -= u.padded;
    if (index >= u.extra) return {};
    return {load_once(p.extra.indices + std::int64_t{u.row} * p.extra.width + index),
            KeySlot::kExtraSlot};
  }
  if (index >= u.keys) return {};
  if (p.main.indices != nullptr) {
    index = load_once(p.main.indices + std::int64_t{u.row} * p.main.width + index);
    if (p.main.table == nullptr) return {index, KeySlot::kSlot};
    // A position: this waits for its page.
    if (index < 0 || index >= u.limit) return {};
  }
  const auto page = static_cast<std::int32_t>(p.main.page_size(static_cast<std::uint32_t>(index)));
  if (page >= p.main.table_width) return {};
  return {p.main.table[std::int64_t{u.request} * p.main.table_width + page],
          index - page * static_cast<std::int32_t>(p.main.page_size.divisor)};
}

/// Address of a token's bytes; row null: no key.
struct KeyPlace {
  const std::byte* row = nullptr;
  const std::byte* scales = nullptr;
};

template <class Format>
__device__ inline KeyPlace key_place(const LatentParams& p, const KeySlot& k) {
  if (k.value < 0) return {};
  const LatentSource& s = k.offset == KeySlot::kExtraSlot ? p.extra : p.main;
  std::int32_t page = k.value, offset = k.offset;
  if (offset < 0) {
    page = static_cast<std::int32_t>(s.page_size(static_cast<std::uint32_t>(k.value)));
    offset = k.value - page * static_cast<std::int32_t>(s.page_size.divisor);
  }
  if (page >= s.pages_count) return {};
  const std::byte* base = s.pages + page * s.page_stride;
  return {base + offset * Format::kRowBytes, base + s.scales + offset * 8};
}

/// Keys of a work tile in both sources, the main one padded to a tile.
__device__ inline std::int32_t keys_of(const LatentWorkTile& u) {
  const std::int32_t all = u.m_rows <= 0 ? 0 : u.extra > 0 ? u.padded + u.extra : u.keys;
  return all < 0 ? 0 : all;
}

/// Iterates over the items of this block's worker, in order, without the items of work tiles that
/// have no M row in this block's M block. All roles of a block iterate alike.
struct LatentItems {
  std::int32_t next;
  std::int32_t end;
  std::int32_t part = -1;  // index of the item's partial; -1: the work tile is not split
  LatentItem item{};
  LatentWorkTile work_tile;

  __device__ LatentItems(const LatentParams& p, std::int32_t worker)
      : next(static_cast<std::int32_t>(p.worker_items[worker])),
        end(static_cast<std::int32_t>(p.worker_items[worker + 1])) {}

  template <int kBlockM>
  __device__ bool take(const LatentParams& p, std::int32_t tile) {
    while (next < end) {
      ++next;
      look_up(p);
      if (tile * kBlockM < work_tile.m_rows) return true;
    }
    return false;
  }
  /// Reloads the item, for roles that don't keep it in registers.
  __device__ void look_up(const LatentParams& p) {
    const int4 v = reinterpret_cast<const int4*>(p.items)[next - 1];
    item = {v.x, v.y, v.z, v.w};
    work_tile = find_work_tile(p, item.work_tile);
    part = v.w;
    if (p.split_tiles != nullptr) return;
    const std::int64_t* items = p.work_tile_items + item.work_tile;
    part = items[1] - items[0] > 1 ? next - 1 : -1;
  }
};

/// Rows of a work tile before those of a small M block (LatentParams::m_blocks). 0 for M blocks of
/// 64 rows: those kernels find an M row's row themselves.
template <int kBlockM>
__device__ inline std::int32_t rows_before(const LatentParams& p, std::int32_t tile) {
  if constexpr (kBlockM == 64) {
    return 0;
  } else {
    return static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(tile * kBlockM)));
  }
}

/// Whether the call is done by another launch (stage.cuh).
__device__ inline bool another_launch_runs(const LatentParams& p) {
  return p.overflow != nullptr && (*p.overflow != 0) != p.overflowed;
}

/// Run by one warp. Where no work tile is split, and so no combine runs, writes zeros for this
/// block's share of the work tiles without keys.
__device__ inline void write_keyless(const LatentParams& p, int lane) {
  if (p.cut) return;
  const auto blocks = static_cast<std::int32_t>(gridDim.x);
  for (auto first = static_cast<std::int32_t>(blockIdx.x); first < p.work_tiles;
       first += 32 * blocks) {
    const std::int32_t mine = first + lane * blocks;
    const std::uint32_t keyless =
        warp_ballot(mine < p.work_tiles && p.work_tile_items[mine] == p.work_tile_items[mine + 1]);
    LATHE_ROLLED
    for (int i = 0; i < 32; ++i) {
      if ((keyless >> i & 1) == 0) continue;
      const LatentWorkTile u = find_work_tile(p, first + i * blocks);
      for (std::int32_t m_row = 0; m_row < u.m_rows; ++m_row) {
        const auto r = static_cast<std::int32_t>(p.by_heads(static_cast<std::uint32_t>(m_row)));
        const std::int32_t head = m_row - r * p.heads;
        auto* out =
            reinterpret_cast<uint2*>(p.out + (u.row + r) * p.out_stride + std::int64_t{head} * 512);
        for (int c = lane; c < 128; c += 32) out[c] = {0, 0};
        if (lane == 0 && p.lse != nullptr) {
          p.lse[(u.row + r) * p.lse_stride + head] = p.lse_form.empty;
        }
      }
    }
  }
}

}  // namespace lathe::cuda
