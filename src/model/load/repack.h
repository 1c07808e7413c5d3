// Converts the int4 matrices of other programs to Lathe's form (GroupScales in kernels/linear.h).
// Every conversion is exact: codes, zeros and scales keep their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/threads.h"

namespace lathe {

/// Source arrays are I32 of any alignment; a word has eight codes. to: [out, in / 2].
struct U4Source {
  const std::byte* words = nullptr;
  std::int64_t out = 0, in = 0;  // whole words
};

/// words: [in / 8, out], nibble i is input 8 j + i.
void repack_gptq(const U4Source& from, ThreadPool* threads, std::byte* to);
/// words: [in, out / 8], output 8 j + i is nibble kAwqOrder[i].
void repack_awq(const U4Source& from, ThreadPool* threads, std::byte* to);
/// Column k of `to` is column columns[k] of codes [out, in / 2] in Lathe's form.
void reorder_columns(const std::byte* codes, std::int64_t out, std::int64_t in,
                     std::span<const std::int32_t> columns, ThreadPool* threads, std::byte* to);

/// to [out, groups]: zero points. words: [groups, out / 8], of GPTQ (`add` is 1 if they are stored
/// one less) or AWQ.
void unpack_zeros_gptq(const std::byte* words, std::int64_t groups, std::int64_t out, int add,
                       std::uint8_t* to);
void unpack_zeros_awq(const std::byte* words, std::int64_t groups, std::int64_t out,
                      std::uint8_t* to);
/// words: [out / 8, groups], nibble i is output 8 j + i (compressed-tensors).
void unpack_zeros_rows(const std::byte* words, std::int64_t groups, std::int64_t out,
                       std::uint8_t* to);

}  // namespace lathe
