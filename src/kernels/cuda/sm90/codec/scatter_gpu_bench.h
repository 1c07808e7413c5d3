// The kernels that scatter_gpu_bench measures: they only move bytes between rows in a dense array
// and records at unordered slots.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace lathe::cuda {

constexpr int kScatterPage = 64;  // slots

struct ScatterPlaces {
  unsigned long long rows;  // an address, as the next
  unsigned long long pool;
  const std::int32_t* slots;  // [count]
  unsigned long long count;   // of rows, a multiple of 256
};

struct ScatterShape {
  bool reads;               // records, to write rows; else the other way round
  int row, record, scales;  // bytes
  int lanes;                // of a row, by 16 bytes; 0: bulk copies write records
  int rows;                 // that a lane has in flight, or of a block
  bool keeps;               // L2 keeps scales longest
  bool drops;               // L2 drops the rest first
  int page;                 // bytes
};

struct ScatterCase {
  const char* layout;
  ScatterShape shape;
  cudaError_t (*launch)(const ScatterPlaces& places, cudaStream_t stream);
};

std::span<const ScatterCase> scatter_cases();

}  // namespace lathe::cuda
