// The rows of a block: what each needs of its slot, worked out once and kept in shared memory.
#pragma once

#include "kernels/cuda/sm90/codec/chunk.cuh"

namespace lathe::cuda {

// Where the record of a slot lies: token i's part is at page + part.start + i * part.step. Offsets
// from the pool and not pointers: a pointer that comes out of shared memory has lost its memory
// space, and accesses through it are generic ones.
struct Place {
  std::int64_t page;    // bytes from the start of the pool; -1: a hole
  std::uint32_t token;  // within the page

  __device__ __forceinline__ bool hole() const { return page < 0; }
};

__device__ __forceinline__ Place place_of(const PagesParams& pages, std::int64_t slot) {
  if (slot < 0 || slot >= pages.slots) return {-1, 0};
  const auto at = static_cast<std::uint32_t>(slot);
  const std::uint32_t page = pages.page_size(at);
  return {std::int64_t{page} * pages.stride, at - page * pages.page_size.divisor};
}

__device__ __forceinline__ std::byte* part_at(const PagesParams& pages, const Place& place,
                                              std::int64_t start, std::uint32_t step) {
  return pages.data + start + place.page + std::uint64_t{place.token} * step;
}

__device__ __forceinline__ int rows_of_block(std::int64_t count, int block_rows) {
  const std::int64_t left = count - std::int64_t{blockIdx.x} * block_rows;
  return left < block_rows ? static_cast<int>(left) : block_rows;
}

// The position of row r, or -1 for a hole. Where nothing rotates any position will do.
__device__ __forceinline__ std::int32_t position_of(const RopeParams& rope, std::int64_t r) {
  if (rope.positions == nullptr) return 0;
  const std::int32_t p = rope.positions[r];
  return p >= 0 && (rope.half == 0 || p < rope.table_positions) ? p : -1;
}

// Where the rows of this block begin, and the byte `offset` of one of them.
__device__ __forceinline__ std::byte* block_row(const RowsParams& rows, int block_rows) {
  return rows.data + std::int64_t{blockIdx.x} * block_rows * rows.stride;
}
__device__ __forceinline__ std::byte* row_at(std::byte* first, const RowsParams& rows, int row,
                                             std::uint32_t offset) {
  return first + std::uint64_t{static_cast<std::uint32_t>(row)} * rows.stride + offset;
}

// Item i of a run of some rows is chunk `chunk` of the row that is returned.
__device__ __forceinline__ std::uint32_t row_of(const FastDiv& chunks, std::uint32_t i,
                                                std::uint32_t& chunk) {
  const std::uint32_t row = chunks(i);
  chunk = i - row * chunks.divisor;
  return row;
}

}  // namespace lathe::cuda
