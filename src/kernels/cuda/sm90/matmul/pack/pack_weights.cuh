// A thread packs the codes of 32 columns, or one scale.
#pragma once

#include "kernels/cuda/common/dialect.cuh"
#include "kernels/cuda/sm90/matmul/pack/pack_weights.h"
#include "kernels/cuda/sm90/matmul/pack/packed_weights.h"

namespace lathe::cuda {

inline constexpr int kPackThreads = 256;

static __global__ void __launch_bounds__(kPackThreads)
    pack_codes_kernel(const __grid_constant__ PackCodes p) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (i >= p.units) return;
  uint4* unit = reinterpret_cast<uint4*>(p.data) + i;
  const uint4 v = *unit;
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  *unit = {packed_word(p.u4, words, 0), packed_word(p.u4, words, 1), packed_word(p.u4, words, 2),
           packed_word(p.u4, words, 3)};
}

static __global__ void __launch_bounds__(kPackThreads)
    pack_scales_kernel(const __grid_constant__ PackScales p) {
  const PackedGroups shape = packed_groups(p.rows, p.cols, p.size);
  const std::int64_t i = std::int64_t{blockIdx.x} * kPackThreads + threadIdx.x;
  if (i >= p.weights * shape.count()) return;
  const std::int64_t weight = i / shape.count(), at = i % shape.count();
  const std::int64_t row = at / shape.each % shape.rows;
  const std::int64_t group = at / shape.each / shape.rows * shape.each + at % shape.each;
  const bool inside = row < p.rows && group < p.groups;
  const std::int64_t from = (weight * p.rows + row) * p.groups + group;
  if (p.bytes == 2) {
    reinterpret_cast<std::uint16_t*>(p.to)[i] =
        inside ? reinterpret_cast<const std::uint16_t*>(p.from)[from] : std::uint16_t{0};
  } else {
    p.to[i] = inside ? p.from[from] : std::byte{0};
  }
}

}  // namespace lathe::cuda
