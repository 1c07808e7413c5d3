// Quantizes rows of activations to e4m3 with a scale per 128 neighbours of a row.
//
// A warp processes 128 elements, a lane four of them.
#pragma once

#include "kernels/cuda/common/quantize_block.cuh"
#include "kernels/cuda/sm90/matmul/quantize.h"

namespace lathe::cuda {

static __global__ void quantize_rows_kernel(const QuantizeParams p) {
  let_next_begin();
  wait_for_previous();
  const int lane = static_cast<int>(threadIdx.x % 32);
  const std::int64_t warp = (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
  const std::int64_t row = warp / p.blocks, block = warp - row * p.blocks;
  if (row >= p.rows) return;
  const std::int64_t col = block * kQuantizeBlock + 4 * lane;
  float v[4] = {0, 0, 0, 0};
  if (col < p.cols) {
    if (p.x_bf16) {
      const auto* from = static_cast<const std::uint16_t*>(p.x) + row * p.x_stride + col;
      if (reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
        const uint2 pairs = *reinterpret_cast<const uint2*>(from);
        v[0] = bits_to_float(pairs.x << 16);
        v[1] = bits_to_float(pairs.x & 0xffff0000u);
        v[2] = bits_to_float(pairs.y << 16);
        v[3] = bits_to_float(pairs.y & 0xffff0000u);
      } else {
        LATHE_UNROLL
        for (int i = 0; i < 4; ++i) v[i] = bits_to_float(std::uint32_t{from[i]} << 16);
      }
    } else {
      const float* from = static_cast<const float*>(p.x) + row * p.x_stride + col;
      LATHE_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = from[i];
    }
  }
  QuantizedFour four = quantize_block(v, p.power_of_two != 0);
  const std::int32_t copies = p.places == nullptr ? 0 : p.copies;
  const std::int64_t own = p.places == nullptr ? 0 : p.own;
  for (std::int32_t i = own < 0 ? 0 : -1; i < copies; ++i) {
    const std::int64_t to = i < 0 ? own + row : p.places[row * copies + i];
    if (i >= 0 && p.weights != nullptr) {
      const float weight = p.weights[row * copies + i];
      float weighed[4];
      LATHE_UNROLL
      for (int j = 0; j < 4; ++j) weighed[j] = to_f32(to_bf16(weight * v[j]));
      four = quantize_block(weighed, p.power_of_two != 0);
    }
    if (col < p.cols) *reinterpret_cast<std::uint32_t*>(p.codes + to * p.cols + col) = four.codes;
    if (lane == 0) p.scales[block * p.scale_stride + to] = four.scale;
  }
}

}  // namespace lathe::cuda
