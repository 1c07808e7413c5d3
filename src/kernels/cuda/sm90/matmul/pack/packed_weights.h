// How 4-bit weights (u4, NVFP4 and MXFP4) are stored on the device. All have scales of groups;
// MXFP4's are of ue8m0.
//
// A GEMM converts codes to bf16 in the registers of wgmma's A operand. There thread c of the four
// that share a row holds columns 2 c and 2 c + 1 of every 8. So the 16 bytes of 32 columns are
// permuted: word c has that thread's codes, as four pairs of neighbours, the even column in the low
// half. The bits of a pair are where few instructions move them to their place in two bf16.
//
// Scales, and zeros of u4, are stored by chunks of 128 columns: [chunks, rows, groups of a chunk],
// with rows rounded up to 16. So the scales of a tile's chunk are one copy of whole 16-byte words.
// Scales of rows and columns that the weight does not have are 0.
//
// Packed weights have as many bytes as the checkpoint's but for the rounding.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_formats.h"
#include "base/integers.h"
#include "kernels/linear.h"

namespace lathe::cuda {

inline constexpr std::int64_t kPackedColumns = 32;  // of a row, in 16 bytes
inline constexpr std::int64_t kPackedChunk = 128;   // columns
inline constexpr std::int64_t kPackedRows = 16;     // to which rows of scales are rounded up

/// Whether the device stores this weight packed.
inline bool is_packed(const WeightView& w) { return w.groups.data != nullptr; }

/// Whether a kernel with zeros multiplies packed weights: that of f16 scales has them too.
inline bool may_have_zeros(const WeightView& w) {
  return w.groups.zeros != nullptr || w.groups.dtype == DType::f16;
}

inline constexpr std::uint8_t kMxfp4MostScale = 127 + 41;

/// Packed MXFP4: its scales are `groups` of ue8m0 and size kMxBlock.
inline bool is_mxfp4(const WeightView& w) {
  return w.dtype == DType::e2m1 && w.groups.dtype == DType::ue8m0;
}

/// Position in half a word of the bits of pair `pair`, 0 to 3: columns 8 pair + 2 c (+ 1).
///
/// u4: nibble `pair`. e2m1: the sign and the three bits below it are as far apart as in a bf16, so
/// that a shift by 0, 3 or 6 moves pairs 0, 1 and 2; pair 3 has the bits that are left.
LATHE_HD constexpr std::uint32_t packed_bits(bool u4, std::uint32_t code, int pair) {
  if (u4) return code << (4 * pair);
  const std::uint32_t sign = code >> 3, size = code & 7;
  if (pair < 3) return sign << (15 - 3 * pair) | size << (6 - 3 * pair);
  return sign << 14 | (size >> 1) << 10 | (size & 1) << 13;
}
/// The inverse of packed_bits(), from half a word.
LATHE_HD constexpr std::uint32_t unpacked_bits(bool u4, std::uint32_t half, int pair) {
  if (u4) return half >> (4 * pair) & 0xf;
  if (pair < 3) return (half >> (15 - 3 * pair) & 1) << 3 | (half >> (6 - 3 * pair) & 7);
  return (half >> 14 & 1) << 3 | (half >> 10 & 3) << 1 | (half >> 13 & 1);
}

/// Packed word `c` of the four words of 32 columns in the checkpoint's order.
LATHE_HD constexpr std::uint32_t packed_word(bool u4, const std::uint32_t (&words)[4], int c) {
  std::uint32_t out = 0;
  for (int pair = 0; pair < 4; ++pair) {
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t code = words[pair] >> (8 * c + 4 * half) & 0xf;
      out |= packed_bits(u4, code, pair) << (16 * half);
    }
  }
  return out;
}
/// The code of column `col` of a packed row. data: the row's words.
LATHE_HD inline std::uint32_t packed_code(bool u4, const std::uint32_t* data, std::int64_t col) {
  const auto in_unit = static_cast<int>(col % kPackedColumns);
  const std::uint32_t word = data[col / kPackedColumns * 4 + in_unit % 8 / 2];
  return unpacked_bits(u4, word >> (16 * (in_unit % 2)) & 0xffff, in_unit / 8);
}

/// Shape of the scales: [chunks, rows, each].
struct PackedGroups {
  std::int64_t chunks, rows, each;

  LATHE_HD constexpr std::int64_t count() const { return chunks * rows * each; }
  /// Index of the scale of group `group` of row `row`.
  LATHE_HD constexpr std::int64_t at(std::int64_t row, std::int64_t group) const {
    return (group / each * rows + row) * each + group % each;
  }
};
LATHE_HD constexpr PackedGroups packed_groups(std::int64_t rows, std::int64_t cols,
                                              std::int64_t size) {
  return {(cols + kPackedChunk - 1) / kPackedChunk,
          (rows + kPackedRows - 1) / kPackedRows * kPackedRows, kPackedChunk / size};
}

}  // namespace lathe::cuda
