// The kernels measured by scatter_gpu_bench: they only copy bytes between rows of a dense array and
// records at unordered slots.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace lathe::cuda {

constexpr int kScatterPage = 64;  // slots

struct ScatterPlaces {
  unsigned long long rows;  // an address, as is the next
  unsigned long long pool;
  const std::int32_t* slots;  // [count]
  unsigned long long count;   // rows, a multiple of 256
};

struct ScatterShape {
  bool reads;               // records to rows; false: rows to records
  int row, record, scales;  // bytes
  int lanes;                // lanes per row, 16 bytes each; 0: bulk copies write records
  int rows;                 // rows that a lane has in flight, or rows of a block
  bool keeps;               // L2 keeps scales longest
  bool drops;               // L2 evicts the rest first
  int page;                 // bytes
};

struct ScatterCase {
  const char* layout;
  ScatterShape shape;
  cudaError_t (*launch)(const ScatterPlaces& places, cudaStream_t stream);
};

std::span<const ScatterCase> scatter_cases();

}  // namespace lathe::cuda
