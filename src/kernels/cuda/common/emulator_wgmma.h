// Hopper's matrix products on the emulator: implements wgmma.cuh and wgmma_*.cuh for an ordinary
// compiler. They run synchronously when they are issued, so a missing fence or wait is not found.
#pragma once

#include <array>

#include "kernels/cuda/common/emulator_hopper.h"

namespace lathe::cuda {

namespace emulated {

/// Decodes a descriptor made by tile_descriptor() in wgmma.cuh.
struct Tile {
  std::uint32_t base, lead, stride;
  bool half;  // rows of 64 bytes
  explicit Tile(std::uint64_t d)
      : base(static_cast<std::uint32_t>(d & 0x3fff) << 4),
        lead(static_cast<std::uint32_t>(d >> 16 & 0x3fff) << 4),
        stride(static_cast<std::uint32_t>(d >> 32 & 0x3fff) << 4),
        half(d >> 62 == 2) {
    LATHE_CHECK(half || d >> 62 == 1, "a tile that is not swizzled over 64 or 128 bytes");
  }
  /// K-major: address of byte `byte` of row `mn` of M or N.
  std::uint32_t at(int mn, int byte) const {
    const auto l = static_cast<std::uint32_t>(mn);
    const std::uint32_t in_tile =
        base + l / 8 * stride + l % 8 * (half ? 64u : 128u) + static_cast<unsigned>(byte);
    return half ? swizzle_64(in_tile) : swizzle_128(in_tile);
  }
  float fp8_by_row(int mn, int k) const { return e4m3_of(load_at<std::uint8_t>(at(mn, k))); }
  /// K-major: element k of row `mn` of M or N.
  float by_row(int mn, int k) const { return bf16_at(at(mn, 2 * k)); }
  /// MN-major: element k of row `mn` of M or N.
  float by_k(int mn, int k) const {
    const auto l = static_cast<std::uint32_t>(mn);
    const auto row = static_cast<std::uint32_t>(k);
    return bf16_at(
        swizzle_128(base + l / 64 * lead + row / 8 * stride + row % 8 * 128 + l % 64 * 2));
  }
};

/// d (+)= a b, summed over kDepth of k; a(row, k) and b(column, k). A thread's outputs are in two
/// rows, and in two columns of each 8-column tile.
template <int kDepth = 16, int kCount, class A, class B>
void multiply(float (&d)[kCount], A a, B b, bool add) {
  const int thread = machine.current % machine.block_threads % 128;
  const int row = thread / 32 * 16 + thread % 32 / 4, column = 2 * (thread % 4);
  float left[2][kDepth], right[kDepth];
  for (int r = 0; r < 2; ++r) {
    for (int k = 0; k < kDepth; ++k) left[r][k] = a(row + 8 * r, k);
  }
  for (int j = 0; j < kCount / 4; ++j) {
    for (int c = 0; c < 2; ++c) {
      for (int k = 0; k < kDepth; ++k) right[k] = b(8 * j + column + c, k);
      for (int r = 0; r < 2; ++r) {
        float& out = d[4 * j + 2 * r + c];
        float sum = add ? out : 0.f;
        for (int k = 0; k < kDepth; ++k) sum += left[r][k] * right[k];
        out = sum;
      }
    }
  }
}

}  // namespace emulated

/// Waits for all warps of the warpgroup, as a product does: one that only some warps issue hangs.
inline void wgmma_fence() {
  constexpr int kFirst = 16;  // kernels have named barriers 0 to 15
  group_sync(kFirst + static_cast<int>(threadIdx.x) / 128, 128);
}
inline void wgmma_commit() {}
template <int kOpen>
void wgmma_wait() {}
template <int kCount>
void wgmma_pin(float (&)[kCount]) {}
inline std::uint64_t tile_descriptor(std::uint32_t address, std::uint32_t stride,
                                     std::uint32_t lead = 16) {
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{lead >> 4} << 16 |
         std::uint64_t{stride >> 4} << 32 | std::uint64_t{1} << 62;
}
inline std::uint64_t descriptor_at(std::uint64_t tile, std::uint32_t bytes) {
  return tile + bytes / 16;
}
inline std::uint64_t descriptor_here(std::uint64_t tile) { return tile; }

inline void mma_m64n64_bf16(float (&d)[32], std::uint64_t a, std::uint64_t b, bool add) {
  const emulated::Tile left(a), right(b);
  emulated::multiply(
      d, [&](int row, int k) { return left.by_row(row, k); },
      [&](int column, int k) { return right.by_row(column, k); }, add);
}
inline void mma_m64n256_bf16(float (&d)[128], std::uint64_t a, std::uint64_t v, bool add) {
  const emulated::Tile left(a), right(v);
  emulated::multiply(
      d, [&](int row, int k) { return left.by_row(row, k); },
      [&](int column, int k) { return right.by_k(column, k); }, add);
}
namespace emulated {
/// What the four threads that share rows g and g + 8 of an operand hold of them.
using OperandRows = std::array<std::array<float, 16>, 2>;
template <class Half>
OperandRows operand_rows(const std::uint32_t (&a)[4], Half value) {
  OperandRows rows;
  for (unsigned c = 0; c < 4; ++c) {
    for (unsigned i = 0; i < 4; ++i) {
      const std::uint32_t word = shuffle(a[i], lane() / 4 * 4 + static_cast<int>(c));
      rows[i % 2][i / 2 * 8 + 2 * c] = value(word, 0);
      rows[i % 2][i / 2 * 8 + 2 * c + 1] = value(word, 1);
    }
  }
  return rows;
}
inline float element(const OperandRows& rows, int row, int k) {
  return rows[static_cast<unsigned>(row % 16 / 8)][static_cast<unsigned>(k)];
}
template <int kCount>
void multiply_rows(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t v, bool add) {
  const auto rows = operand_rows(a, bf16_half);
  const Tile right(v);
  multiply(
      d, [&](int row, int k) { return element(rows, row, k); },
      [&](int column, int k) { return right.by_k(column, k); }, add);
}
}  // namespace emulated
inline void mma_m64n256_bf16_rows(float (&d)[128], const std::uint32_t (&a)[4], std::uint64_t v,
                                  bool add) {
  emulated::multiply_rows(d, a, v, add);
}
inline void mma_m64n128_bf16_rows(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t v,
                                  bool add) {
  emulated::multiply_rows(d, a, v, add);
}
inline void mma_m64n64_bf16_rows(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t v,
                                 bool add) {
  emulated::multiply_rows(d, a, v, add);
}
template <int kCount>
void mma_m64_bf16_rows(float (&d)[kCount], const std::uint32_t* a, std::uint64_t b, bool add) {
  const auto rows = emulated::operand_rows({a[0], a[1], a[2], a[3]}, emulated::bf16_half);
  const emulated::Tile right(b);
  emulated::multiply(
      d, [&](int row, int k) { return emulated::element(rows, row, k); },
      [&](int column, int k) { return right.by_row(column, k); }, add);
}
template <int kCount>
void mma_m64_f16_rows(float (&d)[kCount], const std::uint32_t* a, std::uint64_t b, bool add) {
  const auto rows = emulated::operand_rows({a[0], a[1], a[2], a[3]}, f16_half);
  const emulated::Tile right(b);
  emulated::multiply(
      d, [&](int row, int k) { return emulated::element(rows, row, k); },
      [&](int column, int k) {
        return f16_half(emulated::load_at<std::uint16_t>(right.at(column, 2 * k)), 0);
      },
      add);
}
template <int kCount>
void mma_m64_bf16(float (&d)[kCount], std::uint64_t a, std::uint64_t b, bool add) {
  const emulated::Tile left(a), right(b);
  emulated::multiply(
      d, [&](int row, int k) { return left.by_row(row, k); },
      [&](int column, int k) { return right.by_row(column, k); }, add);
}
template <int kCount>
void mma_m64_bf16_trans_a(float (&d)[kCount], std::uint64_t v, std::uint64_t b, bool add) {
  const emulated::Tile left(v), right(b);
  emulated::multiply(
      d, [&](int row, int k) { return left.by_k(row, k); },
      [&](int column, int k) { return right.by_row(column, k); }, add);
}

inline std::uint64_t half_tile_descriptor(std::uint32_t address) {
  return std::uint64_t{(address & 0x3ffff) >> 4} | std::uint64_t{512 >> 4} << 32 |
         std::uint64_t{2} << 62;
}
inline std::uint32_t pack_e4m3(float low, float high) {
  return convert_e4m3x4(low, high, 0, 0) & 0xffffu;
}
template <int kCount>
inline void mma_m64_e4m3(float (&d)[kCount], std::uint64_t a, std::uint64_t b, bool add) {
  const emulated::Tile left(a), right(b);
  emulated::multiply<32>(
      d, [&](int row, int k) { return left.fp8_by_row(row, k); },
      [&](int column, int k) { return right.fp8_by_row(column, k); }, add);
}
template <int kCount>
inline void mma_m64_e4m3_rows(float (&d)[kCount], const std::uint32_t (&a)[4], std::uint64_t b,
                              bool add = true) {
  float rows[2][32];
  for (int c = 0; c < 4; ++c) {
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = shuffle(a[i], static_cast<std::uint32_t>(lane() / 4 * 4 + c));
      for (int e = 0; e < 4; ++e) {
        rows[i % 2][i / 2 * 16 + 4 * c + e] =
            emulated::e4m3_of(static_cast<std::uint8_t>(word >> 8 * e));
      }
    }
  }
  const emulated::Tile right(b);
  emulated::multiply<32>(
      d, [&](int row, int k) { return rows[row % 16 / 8][k]; },
      [&](int column, int k) { return right.fp8_by_row(column, k); }, add);
}

}  // namespace lathe::cuda
