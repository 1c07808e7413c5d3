// How rows are cut into the work of warps, and where a row lies.
//
// A block takes a few rows. Of each run of these rows a warp takes a batch: consecutive chunks, in
// rounds of 32, of at most 32 rows. Each lane works out where one of the rows lies; the lane that
// holds a chunk asks for it by a shuffle. Warps share nothing, so none waits for another.
#pragma once

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

struct Batch {
  std::uint32_t begin;  // chunks of the run, counted over the block's rows
  std::uint32_t end;
  std::uint32_t first_row;  // of the batch, within the block
  std::uint32_t rows;       // of the block
};

__device__ __forceinline__ std::uint32_t lane_of_warp() { return threadIdx.x % 32; }

// The warp's place among the batches of a block, run after run.
class WarpBatches {
 public:
  __device__ __forceinline__ explicit WarpBatches(std::uint32_t rows) : rows_(rows) {}

  // Calls visit(batch) for the batches of the next run that this warp takes.
  template <class Visit>
  __device__ __forceinline__ void run(const Cut& cut, Visit visit) {
    const std::uint32_t total = rows_ * cut.chunks.divisor;
    for (; mine_ < cut.batches; mine_ += static_cast<int>(blockDim.x / 32)) {
      const std::uint32_t begin = static_cast<std::uint32_t>(mine_) * cut.batch;
      if (begin >= total) continue;
      const std::uint32_t end = begin + cut.batch < total ? begin + cut.batch : total;
      visit(Batch{begin, end, cut.chunks(begin), rows_});
    }
    mine_ -= cut.batches;
  }

 private:
  std::uint32_t rows_;
  int mine_ = static_cast<int>(threadIdx.x / 32);
};

// The chunks of a batch that a lane holds: chunk[u] of row[u], counted from the batch's first row.
// Beyond the end of the batch a lane holds the last chunk again, so that loads need no condition: a
// load under one is copied when it arrives, and what comes after it waits for that.
template <int kCount>
struct Items {
  std::uint32_t row[kCount];
  std::uint32_t chunk[kCount];
  std::uint32_t first;
  std::uint32_t end;

  __device__ __forceinline__ Items(const FastDiv& chunks, const Batch& batch)
      : first(batch.begin + lane_of_warp()), end(batch.end) {
    LATHE_UNROLL
    for (int u = 0; u < kCount; ++u) {
      const std::uint32_t at = first + static_cast<std::uint32_t>(u) * 32;
      const std::uint32_t i = at < end ? at : end - 1;
      const std::uint32_t r = chunks(i);
      chunk[u] = i - r * chunks.divisor;
      row[u] = r - batch.first_row;
    }
  }
  __device__ __forceinline__ bool has(int u) const {
    return first + static_cast<std::uint32_t>(u) * 32 < end;
  }
  // Whether chunk u is there and its row's bit in `holes` is not.
  __device__ __forceinline__ bool has(int u, std::uint32_t holes) const {
    return has(u) && (holes >> row[u] & 1u) == 0;
  }
};

__device__ __forceinline__ Address address_of(const void* p) {
  return reinterpret_cast<Address>(p);
}

// The record of a slot: token i's part is at page + part.start + i * part.step. A hole has the
// place of slot 0, which may be read as well as any.
struct Place {
  Address page = 0;
  std::uint32_t token = 0;
  bool hole = true;

  __device__ __forceinline__ Address part(std::int64_t start, std::uint32_t step) const {
    return page + static_cast<Address>(start) + Address{token} * step;
  }
};

__device__ __forceinline__ Place place_of(const PagesParams& pages, std::int32_t slot) {
  const bool hole = static_cast<std::uint32_t>(slot) >= pages.slots;
  const std::uint32_t at = hole ? 0 : static_cast<std::uint32_t>(slot);
  const std::uint32_t page = pages.page_size(at);
  return {address_of(pages.data) + std::uint64_t{page} * static_cast<std::uint64_t>(pages.stride),
          at - page * pages.page_size.divisor, hole};
}

// Row `row` of rows outside the cache, from its element `chunk` * kChunk.
__device__ __forceinline__ Address row_address(const RowsParams& rows, std::int64_t row,
                                               std::uint32_t byte) {
  return address_of(rows.data) + static_cast<std::uint64_t>(row) * rows.stride + byte;
}

__device__ __forceinline__ std::uint32_t rows_of_block(std::int64_t count, std::int64_t first,
                                                       std::int32_t block_rows) {
  const std::int64_t left = count - first;
  return static_cast<std::uint32_t>(left < block_rows ? left : block_rows);
}

}  // namespace lathe::cuda
