// The indexer's logits by e4m3 tensor cores, for 16, 32 or 64 heads of 128 dimensions.
//
// A key and a head's query are 128-byte rows, K-major, as both operands must be. Keys are on M and
// heads on N: each thread then has a quarter of the heads of its two keys, and the sum over heads
// is a loop and two shuffles. A block keeps the queries of its rows in shared memory and goes
// through tiles of keys, which one warp copies ahead by TMA. A warpgroup loads its half of a tile
// to registers once, so the tile's place is free at once, and the products of all rows read only
// queries from shared memory. Rows of a prompt have the same keys, so four share a tile, and with
// 64 heads a warpgroup has 128 keys, in two products, for each weight that it loads. The tensor
// cores multiply while the heads of the product before are summed.
#pragma once

#include <cuda.h>

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

/// kRows: rows of a block, 1 or 4.
template <int kHeads, int kRows>
struct LogitsWgmma {
  static constexpr int kDim = 128, kGroups = 2;
  static constexpr int kParts = kRows > 1 && kHeads == 64 ? 2 : 1;  // of 64 keys, of a warpgroup
  static constexpr int kKeys = kGroups * kParts * 64, kThreads = kGroups * 128;
  static constexpr int kTiles = kRows == 1 ? 6 : 4 / kParts;  // in shared memory
  static constexpr int kBlocksPerSm = 2;
  static constexpr int kTileCodes = kKeys * kDim, kRowCodes = kHeads * kDim;
  // Shared memory: codes of tiles, codes of rows, scales of tiles, weights of rows.
  static constexpr int kRowsAt = kTiles * kTileCodes;
  static constexpr int kScalesAt = kRowsAt + kRows * kRowCodes;
  static constexpr int kWeightsAt = kScalesAt + kTiles * kKeys * 4;
  static constexpr int kBarriersAt = kWeightsAt + kRows * kHeads * 4;  // full and empty, of tiles
  static constexpr int kLensAt = kBarriersAt + 2 * kTiles * 8;         // of rows
  static constexpr int kSharedBytes = kLensAt + 4 * kRows;
};

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile of 128-byte rows.
__device__ inline std::uint32_t index_chunk(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

struct LogitsWork {
  std::int32_t tiles_each = 1;  // of a block
  FastDiv page_of = {};         // by the keys' page_tokens
  std::int32_t box_rows = 8;    // keys of a box: a power of two that divides page_tokens
};

template <int kHeads, int kRows>
class LogitsBlock {
 public:
  using W = LogitsWgmma<kHeads, kRows>;

  /// keys: tensor map of the pages' codes.
  __device__ LogitsBlock(const IndexLogits& p, const LogitsWork& work, const void* keys,
                         std::uint32_t base)
      : p_(p), work_(work), keys_(keys), base_(base) {}

  __device__ __forceinline__ void run() {
    if (thread() == 0) {
      for (int i = 0; i < W::kTiles; ++i) {
        barrier_init(full_at(i), 1);
        barrier_init(empty_at(i), W::kThreads / 32);
      }
      barriers_visible();
    }
    const auto rows = static_cast<std::int32_t>(p_.rows);
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kRows;
    const std::int32_t end = begin + kRows < rows ? begin + kRows : rows;
    // Rows of one request at a time.
    for (first_row_ = begin; first_row_ < end; first_row_ += count_) {
      request_ = p_.request[first_row_];
      std::int32_t most = len_of(first_row_);
      for (count_ = 1; first_row_ + count_ < end; ++count_) {
        if (p_.request[first_row_ + count_] != request_) break;
        const std::int32_t len = len_of(first_row_ + count_);
        most = len > most ? len : most;
      }
      if (request_ >= 0) run_tiles((most + W::kKeys - 1) / W::kKeys);
    }
  }

 private:
  struct Slot {
    int index = 0;
    std::uint32_t parity = 0;
    __device__ void advance() {
      if (++index < W::kTiles) return;
      index = 0;
      parity ^= 1;
    }
  };

  // Keys of a row that have a column.
  __device__ std::int32_t len_of(std::int32_t row) const {
    const std::int32_t len = p_.lens[row];
    return len < p_.cols ? len : static_cast<std::int32_t>(p_.cols);
  }

  // This block's tiles below `tiles`.
  __device__ __forceinline__ void run_tiles(std::int32_t tiles) {
    const std::int32_t first = static_cast<std::int32_t>(blockIdx.y) * work_.tiles_each;
    const std::int32_t last = first + work_.tiles_each < tiles ? first + work_.tiles_each : tiles;
    if (first >= last) return;
    sync_block();  // the rows before these are done
    if (thread() < 32) {
      page_ahead_ = load_page(first);
      for (std::int32_t i = first; i < last && i < first + W::kTiles; ++i) copy_tile(i);
    }
    copy_queries();
    end_copy_group();
    wait_copy_groups<0>();
    fence_async_proxy();
    sync_block();
    LATHE_ROLLED
    for (std::int32_t tile = first; tile < last; ++tile) {
      barrier_wait(full_at(read_.index), read_.parity);
      Keys keys;
      load_keys(keys);
      const float scale = load_float(scale_at(read_.index, own_key()));
      sync_warp();
      if (thread() % 32 == 0) barrier_arrive(empty_at(read_.index));
      read_.advance();
      // To the place of the tile before this one, whose keys all warps have loaded by now.
      if (thread() < 32 && tile > first && tile - 1 + W::kTiles < last) {
        copy_tile(tile - 1 + W::kTiles);
      }
      multiply(tile, keys, scale);
    }
  }

  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ std::uint32_t keys_at(int slot) const {
    return base_ + static_cast<std::uint32_t>(slot * W::kTileCodes);
  }
  __device__ std::uint32_t scale_at(int slot, int key) const {
    return base_ + static_cast<std::uint32_t>(W::kScalesAt + (slot * W::kKeys + key) * 4);
  }
  __device__ std::uint32_t queries_at(int row) const {
    return base_ + static_cast<std::uint32_t>(W::kRowsAt + row * W::kRowCodes);
  }
  __device__ std::uint32_t weight_at(int row, int head) const {
    return base_ + static_cast<std::uint32_t>(W::kWeightsAt + (row * kHeads + head) * 4);
  }
  __device__ std::uint32_t len_at(int row) const {
    return base_ + static_cast<std::uint32_t>(W::kLensAt + 4 * row);
  }
  __device__ std::uint32_t full_at(int slot) const {
    return base_ + static_cast<std::uint32_t>(W::kBarriersAt + 8 * slot);
  }
  __device__ std::uint32_t empty_at(int slot) const { return full_at(W::kTiles + slot); }

  __device__ __forceinline__ void copy_queries() const {
    for (int i = thread(); i < count_ * kHeads * 8; i += W::kThreads) {
      const int row = i / (kHeads * 8), chunk = i % (kHeads * 8);
      const std::byte* from = p_.q.data + (first_row_ + row) * p_.q.page_stride + chunk * 16;
      copy_async(index_chunk(queries_at(row), chunk / 8, chunk % 8), from, true);
    }
    for (int i = thread(); i < count_ * kHeads; i += W::kThreads) {
      const int row = i / kHeads, head = i % kHeads;
      const std::int64_t at = first_row_ + row;
      const auto* scales = reinterpret_cast<const float*>(p_.q.data + at * p_.q.page_stride +
                                                          std::int64_t{kHeads} * W::kDim);
      store_float(weight_at(row, head),
                  p_.weights[at * p_.weights_stride + head] * p_.constant * scales[head]);
    }
    if (thread() < kRows) {
      store_shared_u32(
          len_at(thread()),
          thread() < count_ ? static_cast<std::uint32_t>(len_of(first_row_ + thread())) : 0);
    }
  }
  // This lane's first key of a tile, whose neighbours are in the same box.
  __device__ std::int32_t box_position(std::int32_t tile) const {
    return tile * W::kKeys + thread() * work_.box_rows;
  }
  __device__ std::int32_t page_number(std::int32_t position) const {
    return static_cast<std::int32_t>(work_.page_of(static_cast<std::uint32_t>(position)));
  }
  // The page of this lane's box as the table has it.
  __device__ std::int32_t load_page(std::int32_t tile) const {
    const std::int32_t n = page_number(box_position(tile));
    return n < p_.width ? p_.page_table[request_ * p_.width + n] : -1;
  }
  // By one warp: a lane copies a box of neighbouring keys and their scales. Call it for one tile
  // after another: it loads the pages of the next.
  __device__ __forceinline__ void copy_tile(std::int32_t tile) {
    const int box = thread() * work_.box_rows;  // the first key, of the tile
    const std::int32_t position = box_position(tile);
    const std::int32_t token = position - page_number(position) * p_.keys.page_tokens;
    const bool has_page = box < W::kKeys && page_ahead_ >= 0 && page_ahead_ < p_.keys.pages;
    const std::int32_t page = has_page ? page_ahead_ : -1;
    page_ahead_ = load_page(tile + 1);
    const auto boxes = static_cast<std::uint32_t>(count_bits(warp_ballot(page >= 0)));
    barrier_wait(empty_at(write_.index), write_.parity ^ 1);
    if (page < 0 && box < W::kKeys) {  // NaN, so that it cannot be selected
      for (int i = 0; i < work_.box_rows; ++i) {
        store_float(scale_at(write_.index, box + i), bits_to_float(0x7fc00000u));
      }
    }
    fence_async_proxy();
    sync_warp();
    const std::uint32_t full = full_at(write_.index);
    const auto rows = static_cast<std::uint32_t>(work_.box_rows);
    if (thread() == 0) barrier_expect(full, boxes * rows * (W::kDim + 4));
    sync_warp();
    if (page >= 0) {
      const std::uint64_t policy = cache_policy(kRows == 1);
      copy_box(keys_at(write_.index) + static_cast<std::uint32_t>(box * W::kDim), keys_, 0, token,
               page, full, policy);
      copy_row(scale_at(write_.index, box),
               p_.keys.data + page * p_.keys.page_stride +
                   std::int64_t{p_.keys.page_tokens} * W::kDim + token * 4,
               rows * 4, full, policy);
    }
    write_.advance();
  }

  // Left operands: this thread's codes of 32 dimensions each.
  using Keys = std::uint32_t[W::kParts][W::kDim / 32][4];
  __device__ __forceinline__ void load_keys(Keys& keys) const {
    const int lane = thread() % 32;
    LATHE_UNROLL
    for (int part = 0; part < W::kParts; ++part) {
      const int key = first_key(part) + lane % 16;
      LATHE_UNROLL
      for (int k = 0; k < W::kDim / 32; ++k) {
        load_matrices(index_chunk(keys_at(read_.index), key, 2 * k + lane / 16), keys[part][k]);
      }
    }
  }
  // This warp's first key of the tile in a part.
  __device__ static int first_key(int part) {
    return (thread() / 128 * W::kParts + part) * 64 + thread() % 128 / 32 * 16;
  }
  // This thread stores the logits of this key of the tile, if its lane is below 2 kParts of four.
  __device__ static int own_key() {
    const int lane = thread() % 32;
    return first_key(W::kParts == 1 ? 0 : lane >> 1 & 1) + lane / 4 + 8 * (lane & 1);
  }

  using Products = float[kHeads / 2];
  // This thread's heads: 8 j + 2 (lane % 4), + 1.
  using Weights = float2[kHeads / 8];
  // Of this thread's heads, of keys lane / 4 and lane / 4 + 8.
  using Sums = float[2];

  // Rows that the block does not have are multiplied as well, and not used.
  __device__ __forceinline__ void multiply(std::int32_t tile, const Keys& keys, float scale) const {
    constexpr int kUnits = kRows * W::kParts, kAhead = kUnits > 1 ? 2 : 1;
    Products d[kAhead];
    Weights weights;
    Sums sums[W::kParts];
    LATHE_UNROLL
    for (int u = 0; u < kAhead; ++u) begin_unit(d[u], keys, u);
    LATHE_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      const int row = u / W::kParts, part = u % W::kParts;
      if (part == 0) load_weights(weights, row);
      Products& products = d[u % kAhead];
      if (u + 1 < kUnits) {
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_pin(products);
      sum_heads(sums[part], products, weights);
      if (u + kAhead < kUnits) begin_unit(products, keys, u + kAhead);
      if (part + 1 == W::kParts) store_logits(tile, row, sums, scale);
    }
  }
  // The product of unit u: a part of the keys by a row's queries.
  __device__ __forceinline__ void begin_unit(Products& d, const Keys& keys, int u) const {
    const std::uint64_t q = descriptor_here(tile_descriptor(queries_at(u / W::kParts), 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (std::uint32_t k = 0; k < W::kDim / 32; ++k) {
      mma_m64_e4m3_rows(d, keys[u % W::kParts][k], descriptor_at(q, k * 32), k > 0);
    }
    wgmma_commit();
  }
  __device__ __forceinline__ void load_weights(Weights& weights, int row) const {
    LATHE_UNROLL
    for (int j = 0; j < kHeads / 8; ++j) {
      weights[j] = load_float2(weight_at(row, 8 * j + 2 * (thread() & 3)));
    }
  }
  __device__ __forceinline__ static void sum_heads(Sums& sums, const Products& d,
                                                   const Weights& weights) {
    sums[0] = sums[1] = 0;
    LATHE_UNROLL
    for (int j = 0; j < kHeads / 8; ++j) {
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        // A maximum that keeps NaN.
        sums[i] = fmaf(max_or_nan(d[4 * j + 2 * i], 0.f), weights[j].x, sums[i]);
        sums[i] = fmaf(max_or_nan(d[4 * j + 2 * i + 1], 0.f), weights[j].y, sums[i]);
      }
    }
  }
  __device__ __forceinline__ void store_logits(std::int32_t tile, int row,
                                               const Sums (&sums)[W::kParts], float scale) const {
    const int lane = thread() % 32;
    // Of each four lanes, lanes 0 and 2 sum keys lane / 4, lanes 1 and 3 those 8 further.
    float both[W::kParts];
    LATHE_UNROLL
    for (int part = 0; part < W::kParts; ++part) {
      const Sums& s = sums[part];
      const float other = shuffle_xor((lane & 1) == 0 ? s[1] : s[0], 1);
      both[part] = ((lane & 1) == 0 ? s[0] : s[1]) + other;
    }
    float sum = both[0];
    if constexpr (W::kParts == 1) {
      sum += shuffle_xor(sum, 2);
    } else {
      // Lanes 0 and 1 have part 0, lanes 2 and 3 part 1.
      const float other = shuffle_xor((lane & 2) == 0 ? both[1] : both[0], 2);
      sum = ((lane & 2) == 0 ? both[0] : both[1]) + other;
    }
    const std::int32_t position = tile * W::kKeys + own_key();
    const auto len = static_cast<std::int32_t>(load_shared_u32(len_at(row)));
    if ((lane & 3) >= 2 * W::kParts || position >= len) return;
    p_.logits[(first_row_ + row) * p_.cols + position] = sum * scale;
  }

  const IndexLogits& p_;
  const LogitsWork& work_;
  const void* const keys_;
  const std::uint32_t base_;
  Slot read_, write_;
  std::int32_t first_row_ = 0, count_ = 0, request_ = -1;  // rows in shared memory
  std::int32_t page_ahead_ = -1;                           // of this lane's next box
};

template <int kHeads, int kRows>
static __global__ void __launch_bounds__(LogitsWgmma<kHeads, kRows>::kThreads,
                                         LogitsWgmma<kHeads, kRows>::kBlocksPerSm)
    index_logits_wgmma_kernel(const __grid_constant__ IndexLogits p,
                              const __grid_constant__ LogitsWork work,
                              const __grid_constant__ CUtensorMap keys) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  let_next_begin();
  wait_for_previous();
  LogitsBlock<kHeads, kRows>(p, work, &keys, shared_address(shared_bytes)).run();
}

}  // namespace lathe::cuda
