#include "model/load/repack.h"

#include <algorithm>
#include <cstring>

#include "model/weights/weight_formats.h"
#include "model/weights/weights.h"

namespace lathe {
namespace {

constexpr std::int64_t kRowsPerTask = 64;  // whole words of outputs

std::uint32_t word_at(const std::byte* words, std::int64_t i) {
  std::uint32_t word;
  std::memcpy(&word, words + 4 * i, sizeof(word));
  return word;
}

unsigned nibble_of(std::uint32_t word, int i) { return word >> (4 * i) & 0xfu; }

// Calls body(first, end) for slices of n outputs.
template <class Body>
void for_outputs(ThreadPool* threads, std::int64_t n, const Body& body) {
  for_each(threads, (n + kRowsPerTask - 1) / kRowsPerTask, [&](std::int64_t task) {
    body(task * kRowsPerTask, std::min(n, (task + 1) * kRowsPerTask));
  });
}

}  // namespace

void repack_gptq(const U4Source& from, ThreadPool* threads, std::byte* to) {
  const std::int64_t words = from.in / 8;
  // A word stays as it is; only the order of words changes.
  for_outputs(threads, from.out, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t j = 0; j < words; ++j) {
      for (std::int64_t o = first; o < end; ++o) {
        std::memcpy(to + 4 * (o * words + j), from.words + 4 * (j * from.out + o), 4);
      }
    }
  });
}

void repack_awq(const U4Source& from, ThreadPool* threads, std::byte* to) {
  const std::int64_t words = from.in / 8, across = from.out / 8;
  for_outputs(threads, from.out, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t j = 0; j < words; ++j) {
      for (std::int64_t o = first; o < end; o += 8) {
        std::uint32_t in[8];  // of inputs 8 j to 8 j + 7
        for (int k = 0; k < 8; ++k) in[k] = word_at(from.words, (8 * j + k) * across + o / 8);
        for (int i = 0; i < 8; ++i) {
          std::uint32_t out = 0;
          for (int k = 0; k < 8; ++k) out |= nibble_of(in[k], kAwqOrder[i]) << (4 * k);
          std::memcpy(to + 4 * ((o + i) * words + j), &out, sizeof(out));
        }
      }
    }
  });
}

void reorder_columns(const std::byte* codes, std::int64_t out, std::int64_t in,
                     std::span<const std::int32_t> columns, ThreadPool* threads, std::byte* to) {
  const std::int64_t row = in / 2;  // bytes
  for_outputs(threads, out, [&](std::int64_t first, std::int64_t end) {
    for (std::int64_t o = first; o < end; ++o) {
      const std::byte* from = codes + o * row;
      const auto code = [&](std::int64_t k) {
        const std::int32_t c = columns[static_cast<std::size_t>(k)];
        return std::to_integer<unsigned>(from[c / 2]) >> (c % 2 * 4) & 0xfu;
      };
      for (std::int64_t i = 0; i < row; ++i) {
        to[o * row + i] = static_cast<std::byte>(code(2 * i) | code(2 * i + 1) << 4);
      }
    }
  });
}

void unpack_zeros_gptq(const std::byte* words, std::int64_t groups, std::int64_t out, int add,
                       std::uint8_t* to) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t o = 0; o < out; ++o) {
      const std::uint32_t word = word_at(words, g * (out / 8) + o / 8);
      to[o * groups + g] = static_cast<std::uint8_t>(nibble_of(word, static_cast<int>(o % 8)) +
                                                     static_cast<unsigned>(add));
    }
  }
}

void unpack_zeros_awq(const std::byte* words, std::int64_t groups, std::int64_t out,
                      std::uint8_t* to) {
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t o = 0; o < out; ++o) {
      const std::uint32_t word = word_at(words, g * (out / 8) + o / 8);
      to[o * groups + g] = static_cast<std::uint8_t>(nibble_of(word, kAwqOrder[o % 8]));
    }
  }
}

void unpack_zeros_rows(const std::byte* words, std::int64_t groups, std::int64_t out,
                       std::uint8_t* to) {
  for (std::int64_t o = 0; o < out; ++o) {
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::uint32_t word = word_at(words, o / 8 * groups + g);
      to[o * groups + g] = static_cast<std::uint8_t>(nibble_of(word, static_cast<int>(o % 8)));
    }
  }
}

}  // namespace lathe
