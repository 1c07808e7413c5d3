// Stores the sums of a unit of 16 weight rows and up to 8 tokens, as mma.sync's lanes have them.
#pragma once

#include "kernels/cuda/common/activated.cuh"
#include "kernels/cuda/common/cluster_store.cuh"
#include "kernels/cuda/sm90/matmul/few/keep.cuh"
#include "kernels/cuda/sm90/matmul/matmul_work.cuh"

namespace lathe::cuda {

/// Stores 8 columns of the output from `column` on in bf16. a, b: of the lane's row, and tokens 2
/// (lane % 4), + 1.
__device__ inline void store_few_pair(const MatmulWeight& weight, const MatmulWork& w, int lane,
                                      std::int32_t column, std::int32_t columns, float a, float b) {
  std::uint32_t pair = transpose_matrix(pack_bf16(a, b));
  keep(pair);  // all lanes must transpose, also those that store nothing
  const std::int32_t token = w.token + lane / 4;
  column += 2 * (lane & 3);
  if (token >= w.end || column >= columns) return;
  *reinterpret_cast<std::uint32_t*>(static_cast<std::uint16_t*>(weight.out) +
                                    token * weight.out_stride + column) = pair;
}

/// Adds biases, applies the activation of a gated GEMM, and stores. w.row: the unit's first row. v:
/// of rows lane / 4 (first two) and + 8 in wgmma's order (matmul_row()), and tokens 2 (lane % 4), +
/// 1.
__device__ inline void store_few(const MatmulParams& p, const MatmulWork& w, int lane,
                                 const float (&sums)[4]) {
  const std::int32_t row = w.row + lane / 4;
  float v[4];
  LATHE_UNROLL
  for (int i = 0; i < 2; ++i) {
    const MatmulRow r = matmul_row(p, w, row, i);
    const float* of_weight = p.weights[r.weight].bias;
    const float bias = of_weight == nullptr ? 0 : of_weight[w.group * p.bias_group + r.row];
    v[2 * i] = sums[2 * i] + bias;
    v[2 * i + 1] = sums[2 * i + 1] + bias;
  }
  const MatmulWeight& weight = p.weights[w.weight];
  if (p.gate_step != 0) {
    float made[2];
    LATHE_UNROLL
    for (int j = 0; j < 2; ++j) {
      made[j] = activated(p.activation, p.up_first ? v[2 + j] : v[j], p.up_first ? v[j] : v[2 + j]);
    }
    return store_few_pair(weight, w, lane, w.row / 2, weight.rows / 2, made[0], made[1]);
  }
  if (weight.out_bf16 != 0) {
    LATHE_UNROLL
    for (int h = 0; h < 2; ++h) {
      store_few_pair(weight, w, lane, w.row + 8 * h, weight.rows, v[2 * h], v[2 * h + 1]);
    }
    return;
  }
  LATHE_UNROLL
  for (int j = 0; j < 2; ++j) {
    const std::int32_t token = w.token + 2 * (lane & 3) + j;
    if (token >= w.end) continue;
    float* out = static_cast<float*>(weight.out) + token * weight.out_stride + row;
    LATHE_UNROLL
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= weight.rows) continue;
      if (weight.add != 0) {
        add_global(out + 8 * h, v[2 * h + j]);
      } else {
        out[8 * h] = v[2 * h + j];
      }
    }
  }
}

}  // namespace lathe::cuda
