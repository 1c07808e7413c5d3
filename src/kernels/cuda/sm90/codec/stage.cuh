// Assembles records in shared memory and writes them whole with bulk copies.
//
// Records of mla_fp8_block are not a multiple of a 32-byte sector, so separate stores leave partial
// sectors at both ends of each part, which reach memory in pieces. A record written whole has only
// two such ends. Records of v4_fp8 are whole sectors; memory accepts them faster when they are
// written together.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/hopper.cuh"
#include "kernels/cuda/sm90/codec/batch.cuh"

namespace lathe::cuda {

// A generic address within a record in shared memory.
struct StageAddress {
  Address at;
  __device__ __forceinline__ StageAddress operator+(Address bytes) const { return {at + bytes}; }
};
template <class T>
__device__ __forceinline__ void store_global(StageAddress to, T v) {
  *reinterpret_cast<T*>(to.at) = v;
}

// The records of a block's rows. Without kStaged they are written directly to their destination.
template <bool kStaged>
class Stage {
 public:
  using To = std::conditional_t<kStaged, StageAddress, Address>;

  // shared: stage_bytes(block_rows, record) bytes.
  __device__ __forceinline__ Stage(unsigned char* shared, std::int32_t block_rows,
                                   std::uint32_t record)
      : places_(shared), records_(shared + stage_head(block_rows)), record_(record) {}

  // Address of part `start` in the record of the block's row `row`.
  __device__ __forceinline__ To part(const Place& place, std::uint32_t row, std::int64_t start,
                                     std::uint32_t step) const {
    if constexpr (kStaged) {
      return {address_of(records_) + Address{row} * record_ + static_cast<Address>(start)};
    } else {
      return place.part(start, step);
    }
  }
  // Called by one lane per row: stores the record's destination.
  __device__ __forceinline__ void send(const Place& place, std::uint32_t row) const {
    if constexpr (kStaged) {
      reinterpret_cast<Address*>(places_)[row] = place.hole ? 0 : place.part(0, record_);
    }
  }
  // Called by all threads of the block (which has `rows` rows) after they have assembled their
  // parts. A block has at least as many threads as rows, because a warp's batch has at most 32
  // rows.
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
