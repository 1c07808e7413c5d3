// Matrix products of a warp on bf16 tiles in shared memory: mma.sync with f32 sums.
//
// With g = lane / 4 and c = lane % 4, a lane has these elements of a [16, 8] tile of sums:
//   d[0], d[1]: row g, columns 2 c and 2 c + 1;  d[2], d[3]: row g + 8.
#pragma once

#include "kernels/cuda/common/hopper.cuh"

namespace lathe::cuda {

#ifdef __CUDACC__

/// d += a b over 16 of k; a [16, 16] and b [16, 8] as load_a() and load_b() load them.
__device__ inline void warp_mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else

inline void warp_mma(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                     std::uint32_t b1) {
  struct Words {
    std::uint32_t a[4], b[2];
  };
  const Words mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const std::uint64_t* const warp = emulated::exchange(&mine);
  const Words* of[32];
  for (int l = 0; l < 32; ++l) std::memcpy(&of[l], &warp[l], sizeof of[l]);
  const auto half = [](std::uint32_t v, int i) { return emulated::bf16_half(v, i); };
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4, column = 2 * (lane % 4) + i % 2, upper = i / 2;
    for (int k = 0; k < 16; ++k) {
      const int word = k / 8, owner = k % 8 / 2;
      d[i] += half(of[4 * row + owner]->a[2 * word + upper], k % 2) *
              half(of[4 * column + owner]->b[word], k % 2);
    }
  }
  sync_warp();  // `mine` must live until all lanes have read it
}

#endif

/// A bf16 matrix in shared memory, of kStride elements a row. Rows are 16 bytes more than a
/// multiple of 128 bytes (or of 32, for few columns), so that 8 rows' chunks are in different
/// banks.
template <int kStride>
struct SharedTile {
  std::uint32_t base = 0;

  static_assert(kStride * 2 % 16 == 0 && kStride * 2 / 16 % 2 == 1);
  __device__ std::uint32_t at(int row, int column) const {
    return base + static_cast<std::uint32_t>(2 * (row * kStride + column));
  }
  /// Operand a: rows [row, + 16) and k [k, + 16) of a matrix [rows, k].
  __device__ void load_a(int row, int k, std::uint32_t (&v)[4]) const {
    const auto l = static_cast<int>(threadIdx.x % 32);
    load_matrices(at(row + l % 16, k + l / 16 * 8), v);
  }
  /// Operand a from its transpose, a matrix [k, rows].
  __device__ void load_a_trans(int row, int k, std::uint32_t (&v)[4]) const {
    const auto l = static_cast<int>(threadIdx.x % 32);
    load_matrices_trans(at(k + l % 8 + l / 16 * 8, row + l / 8 % 2 * 8), v);
  }
  /// Operand b for columns [n, + 16) from a matrix [k, n]: v[0], v[1] for the first 8 columns.
  __device__ void load_b(int k, int n, std::uint32_t (&v)[4]) const {
    const auto l = static_cast<int>(threadIdx.x % 32);
    load_matrices_trans(at(k + l % 8 + l / 8 % 2 * 8, n + l / 16 * 8), v);
  }
  /// The same from its transpose, a matrix [n, k].
  __device__ void load_b_trans(int k, int n, std::uint32_t (&v)[4]) const {
    const auto l = static_cast<int>(threadIdx.x % 32);
    load_matrices(at(n + l % 8 + l / 16 * 8, k + l / 8 % 2 * 8), v);
  }
  /// Stores a tile of sums in bf16.
  __device__ void store(int row, int column, const float (&d)[4]) const {
    const auto l = static_cast<int>(threadIdx.x % 32);
    store_shared_u32(at(row + l / 4, column + l % 4 * 2), pack_bf16(d[0], d[1]));
    store_shared_u32(at(row + l / 4 + 8, column + l % 4 * 2), pack_bf16(d[2], d[3]));
  }
};

}  // namespace lathe::cuda
