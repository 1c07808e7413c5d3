// Assembles records in shared memory and writes them whole by bulk copies.
//
// Records of mla_fp8_block are not a multiple of a sector (32 bytes), so separate stores leave
// partial sectors at both ends of each, and memory gets those in pieces. Written whole, a record
// has two such ends. Records of v4_fp8 are whole sectors, which memory takes faster together.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// A generic address in a record that is assembled in shared memory.
struct StageAddress {
  Address at;
  __device__ __forceinline__ StageAddress operator+(Address bytes) const { return {at + bytes}; }
};
template <class T>
__device__ __forceinline__ void store_global(StageAddress to, T v) {
  *reinterpret_cast<T*>(to.at) = v;
}

// The records of a block's rows. Not kStaged: they are written where they belong.
template <bool kStaged>
class Stage {
 public:
  using To = std::conditional_t<kStaged, StageAddress, Address>;

  // shared: stage_bytes(block_rows, record).
  __device__ __forceinline__ Stage(unsigned char* shared, std::int32_t block_rows,
                                   std::uint32_t record)
      : places_(shared), records_(shared + stage_head(block_rows)), record_(record) {}

  // Part `start` of the record that row `row` of the block goes to.
  __device__ __forceinline__ To part(const Place& place, std::uint32_t row, std::int64_t start,
                                     std::uint32_t step) const {
    if constexpr (kStaged) {
      return {address_of(records_) + Address{row} * record_ + static_cast<Address>(start)};
    } else {
      return place.part(start, step);
    }
  }
  // By one lane for each row: where its record goes.
  __device__ __forceinline__ void send(const Place& place, std::uint32_t row) const {
    if constexpr (kStaged) {
      reinterpret_cast<Address*>(places_)[row] = place.hole ? 0 : place.part(0, record_);
    }
  }
  // By all threads of the block, which has `rows` rows, when they have put together what they hold.
  // There are no fewer threads than rows, as a warp's batch has 32 rows at most.
  __device__ __forceinline__ void write(std::uint32_t rows) const {
    if constexpr (kStaged) {
      fence_async_proxy();
      sync_block();
      if (threadIdx.x >= rows) return;
      const Address to = reinterpret_cast<const Address*>(places_)[threadIdx.x];
      if (to != 0) copy_out(to, shared_address(records_) + threadIdx.x * record_, record_);
      wait_copies_out();
    }
  }

 private:
  unsigned char* places_;
  unsigned char* records_;
  std::uint32_t record_;
};

}  // namespace lathe::cuda
