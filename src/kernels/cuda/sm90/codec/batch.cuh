// How the codecs assign rows to warps and lanes, and the address of a row.
//
// A block processes a few rows, run by run. A warp's batch is all chunks of a few of these rows in
// one run, or a part of them. Lanes with chunks of the same row are neighbours, and a lane has
// chunks of one row only, so each lane computes its own addresses. Warps share nothing and never
// wait for each other.
#pragma once

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

__device__ __forceinline__ std::uint32_t lane_of_warp() { return threadIdx.x % 32; }

// How many rows ahead slots and positions are prefetched. A row's address needs its slot, so
// without the prefetch every row would wait for memory twice.
inline constexpr std::int64_t kRowsAhead = 32768;

__device__ __forceinline__ void prefetch_list(const std::int32_t* list, std::int64_t first_row,
                                              std::int32_t block_rows, std::int64_t count) {
  constexpr std::uint32_t kSector = 8;  // entries
  if (list == nullptr || threadIdx.x * kSector >= static_cast<std::uint32_t>(block_rows)) return;
  const std::int64_t row = first_row + kRowsAhead + threadIdx.x * kSector;
  if (row < count) prefetch_global(list + row);
}

// Calls visit(batch) for this warp's batches, run after run.
class WarpBatches {
 public:
  template <class Visit>
  __device__ __forceinline__ void run(std::int32_t batches, Visit visit) {
    for (; mine_ < batches; mine_ += static_cast<int>(blockDim.x / 32)) {
      visit(static_cast<std::uint32_t>(mine_));
    }
    mine_ -= batches;
  }

 private:
  int mine_ = static_cast<int>(threadIdx.x / 32);
};

// The chunks of a batch that a lane holds: chunk, chunk + step, ... of one row. Lanes past the end
// repeat the last row or chunk, so that loads need no condition: the compiler copies a
// conditionally loaded value at once, and so waits for it. kWhole: no lane is past the end.
struct Hold {
  std::uint32_t row;
  std::uint32_t chunk;
  std::uint32_t step;
  bool has;

  template <bool kWhole>
  __device__ __forceinline__ static Hold of(const LaneMap& lanes, std::uint32_t batch,
                                            std::uint32_t rows) {
    const std::uint32_t lane = lane_of_warp();
    const std::uint32_t group = lanes.pieces(batch);
    const std::uint32_t piece = batch - group * lanes.pieces.divisor;
    Hold out;
    out.step = 1u << lanes.shift;
    out.row = (group << (5 - lanes.shift)) + (lane >> lanes.shift);
    out.chunk = ((piece * static_cast<std::uint32_t>(lanes.rounds)) << lanes.shift) +
                (lane & (out.step - 1));
    out.has = out.row < rows && (kWhole || out.chunk < lanes.chunks);
    if (out.row >= rows) out.row = rows - 1;
    if (!kWhole && out.chunk >= lanes.chunks) out.chunk = lanes.chunks - 1;
    return out;
  }
};

__device__ __forceinline__ Address address_of(const void* p) {
  return reinterpret_cast<Address>(p);
}

// The record of a slot: token i's part is at page + part.start + i * part.step. A hole gets the
// address of slot 0, which is safe to read.
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

// Address of byte `byte` in row `row` of rows outside the cache.
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
