// The indexer's logits by e4m3 tensor cores, for 16, 32 or 64 heads of 128 dimensions.
//
// A key and a head's query are 128-byte rows, K-major, as both operands must be. Keys are on M and
// heads on N: each thread then has a quarter of the heads of its two keys, and the sum over heads
// is a loop and two shuffles. A block keeps the queries of its rows in shared memory and goes
// through tiles of 128 keys, 64 for each warpgroup; two tiles are copied ahead. Rows of a prompt
// have the same keys, so four share a tile. The tensor cores multiply a row while the heads of the
// row before it are summed.
#pragma once

#include "kernels/cuda/common/wgmma_fp8.cuh"
#include "kernels/cuda/sm90/indexer/indexer.h"

namespace lathe::cuda {

/// kRows: rows of a block, 1 or 4.
template <int kHeads, int kRows>
struct LogitsWgmma {
  static constexpr int kDim = 128, kGroupKeys = 64, kGroups = 2;
  static constexpr int kKeys = kGroups * kGroupKeys, kThreads = kGroups * 128;
  static constexpr int kTiles = 3;  // in shared memory
  static constexpr int kBlocksPerSm = kRows == 1 ? 3 : 2;
  static constexpr int kTileCodes = kKeys * kDim, kRowCodes = kHeads * kDim;
  // Shared memory: codes of tiles, codes of rows, scales of tiles, weights of rows.
  static constexpr int kRowsAt = kTiles * kTileCodes;
  static constexpr int kScalesAt = kRowsAt + kRows * kRowCodes;
  static constexpr int kWeightsAt = kScalesAt + kTiles * kKeys * 4;
  static constexpr int kSharedBytes = kWeightsAt + kRows * kHeads * 4;
};

/// Byte address of 16-byte chunk `chunk` of a row of a swizzled tile of 128-byte rows.
__device__ inline std::uint32_t index_chunk(std::uint32_t tile, int row, int chunk) {
  return tile + static_cast<std::uint32_t>(row * 128 + ((chunk ^ (row & 7)) << 4));
}

struct LogitsWork {
  std::int32_t tiles_each = 1;  // of a block
  FastDiv page_of = {};         // by the keys' page_tokens
};

template <int kHeads, int kRows>
class LogitsBlock {
 public:
  using W = LogitsWgmma<kHeads, kRows>;

  __device__ LogitsBlock(const IndexLogits& p, const LogitsWork& work, std::uint32_t base)
      : p_(p), work_(work), base_(base) {}

  __device__ __forceinline__ void run() {
    const auto rows = static_cast<std::int32_t>(p_.rows);
    const std::int32_t begin = static_cast<std::int32_t>(blockIdx.x) * kRows;
    const std::int32_t end = begin + kRows < rows ? begin + kRows : rows;
    // Rows of one request at a time.
    for (first_row_ = begin; first_row_ < end; first_row_ += count_) {
      request_ = p_.request[first_row_];
      std::int32_t most = p_.lens[first_row_];
      for (count_ = 1; first_row_ + count_ < end; ++count_) {
        if (p_.request[first_row_ + count_] != request_) break;
        const std::int32_t len = p_.lens[first_row_ + count_];
        most = len > most ? len : most;
      }
      if (most > p_.cols) most = static_cast<std::int32_t>(p_.cols);
      if (request_ >= 0) run_tiles((most + W::kKeys - 1) / W::kKeys);
    }
  }

 private:
  // This block's tiles below `tiles`.
  __device__ __forceinline__ void run_tiles(std::int32_t tiles) {
    const std::int32_t first = static_cast<std::int32_t>(blockIdx.y) * work_.tiles_each;
    const std::int32_t last = first + work_.tiles_each < tiles ? first + work_.tiles_each : tiles;
    if (first >= last) return;
    sync_block();  // the rows before these are done
    copy_queries();
    copy_tile(first, 0);
    end_copy_group();
    if (first + 1 < last) copy_tile(first + 1, 1);
    end_copy_group();
    int slot = 0;
    LATHE_ROLLED
    for (std::int32_t tile = first; tile < last; ++tile) {
      wait_copy_groups<1>();
      fence_async_proxy();
      sync_block();  // the tile before this one is done too, so its slot is free
      const int free = slot == 0 ? W::kTiles - 1 : slot - 1;
      if (tile + 2 < last) copy_tile(tile + 2, free);
      end_copy_group();
      multiply(tile, slot);
      slot = slot + 1 < W::kTiles ? slot + 1 : 0;
    }
    wait_copy_groups<0>();
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
  }
  // The page of a key, or -1.
  __device__ std::int32_t page_at(std::int32_t n) const {
    if (n >= p_.width) return -1;
    const std::int32_t page = p_.page_table[request_ * p_.width + n];
    return page >= 0 && page < p_.keys.pages ? page : -1;
  }
  __device__ __forceinline__ void copy_tile(std::int32_t tile, int slot) const {
    LATHE_UNROLL
    for (int i = 0; i < W::kKeys * 8 / W::kThreads; ++i) {
      const int key = thread() / 8 + i * (W::kThreads / 8), chunk = thread() % 8;
      const std::int32_t position = tile * W::kKeys + key;
      const auto n = static_cast<std::int32_t>(work_.page_of(static_cast<std::uint32_t>(position)));
      const std::int32_t page = page_at(n), token = position - n * p_.keys.page_tokens;
      const std::byte* from = p_.keys.data + (page < 0 ? 0 : page) * p_.keys.page_stride;
      copy_async(index_chunk(keys_at(slot), key, chunk), from + token * W::kDim + chunk * 16,
                 page >= 0);
      if (chunk != 0) continue;
      if (page >= 0) {
        copy_async_4(scale_at(slot, key),
                     from + std::int64_t{p_.keys.page_tokens} * W::kDim + token * 4);
      } else {  // NaN, so that it cannot be selected
        store_float(scale_at(slot, key), bits_to_float(0x7fc00000u));
      }
    }
  }

  using Products = float[kHeads / 2];

  // Rows that the block does not have are multiplied as well, and not used.
  __device__ __forceinline__ void multiply(std::int32_t tile, int slot) const {
    const int group = thread() / 128;
    const std::uint64_t keys = descriptor_here(tile_descriptor(
        keys_at(slot) + static_cast<std::uint32_t>(group * W::kGroupKeys * W::kDim), 1024));
    constexpr int kAhead = kRows > 1 ? 2 : 1;
    Products d[kAhead];
    LATHE_UNROLL
    for (int r = 0; r < kAhead; ++r) begin_row(d[r], keys, r);
    LATHE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      Products& products = d[r % kAhead];
      if (r + 1 < kRows) {
        wgmma_wait<1>();
      } else {
        wgmma_wait<0>();
      }
      wgmma_pin(products);
      if (r < count_) store_logits(tile, slot, r, products);
      if (r + kAhead < kRows) begin_row(products, keys, r + kAhead);
    }
  }
  __device__ __forceinline__ void begin_row(Products& d, std::uint64_t keys, int row) const {
    const std::uint64_t q = descriptor_here(tile_descriptor(queries_at(row), 1024));
    wgmma_fence();
    LATHE_UNROLL
    for (std::uint32_t k = 0; k < W::kDim / 32; ++k) {
      mma_m64_e4m3(d, descriptor_at(keys, k * 32), descriptor_at(q, k * 32), k > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void store_logits(std::int32_t tile, int slot, int row,
                                               const Products& d) const {
    const int lane = thread() % 32, warp = thread() / 32 % 4, group = thread() / 128;
    float sums[2] = {0, 0};
    LATHE_UNROLL
    for (int j = 0; j < kHeads / 8; ++j) {
      const float2 w = load_float2(weight_at(row, 8 * j + 2 * (lane & 3)));
      LATHE_UNROLL
      for (int i = 0; i < 2; ++i) {
        // A maximum that keeps NaN.
        sums[i] = fmaf(max_or_nan(d[4 * j + 2 * i], 0.f), w.x, sums[i]);
        sums[i] = fmaf(max_or_nan(d[4 * j + 2 * i + 1], 0.f), w.y, sums[i]);
      }
    }
    LATHE_UNROLL
    for (int i = 0; i < 2; ++i) {
      sums[i] += shuffle_xor(sums[i], 1);
      sums[i] += shuffle_xor(sums[i], 2);
    }
    // Of each four lanes, lanes 0 and 1 store one key each.
    const int key = group * W::kGroupKeys + warp * 16 + lane / 4 + 8 * (lane & 1);
    const std::int32_t position = tile * W::kKeys + key;
    const std::int64_t at = first_row_ + row;
    if ((lane & 3) >= 2 || position >= p_.lens[at] || position >= p_.cols) return;
    p_.logits[at * p_.cols + position] =
        ((lane & 1) == 0 ? sums[0] : sums[1]) * load_float(scale_at(slot, key));
  }

  const IndexLogits& p_;
  const LogitsWork& work_;
  const std::uint32_t base_;
  std::int32_t first_row_ = 0, count_ = 0, request_ = -1;  // rows in shared memory
};

template <int kHeads, int kRows>
static __global__ void __launch_bounds__(LogitsWgmma<kHeads, kRows>::kThreads,
                                         LogitsWgmma<kHeads, kRows>::kBlocksPerSm)
    index_logits_wgmma_kernel(const __grid_constant__ IndexLogits p,
                              const __grid_constant__ LogitsWork work) {
  LATHE_DYNAMIC_SHARED(shared_bytes);
  let_next_begin();
  wait_for_previous();
  LogitsBlock<kHeads, kRows>(p, work, shared_address(shared_bytes)).run();
}

}  // namespace lathe::cuda
