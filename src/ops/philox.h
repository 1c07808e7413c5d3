// Philox4x32-10: random numbers as a function of a key and a counter (Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state to lose or to share,
// so the numbers of a request depend neither on its batch nor on a preemption.
#pragma once

#include <array>
#include <cstdint>

namespace lathe {

inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                               std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
        static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// 64 random bits that belong to (seed, position).
inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t position) {
  const auto word = [](std::uint64_t x, int i) {
    return static_cast<std::uint32_t>(x >> (32 * i));
  };
  const auto out =
      philox4x32({word(position, 0), word(position, 1), 0, 0}, {word(seed, 0), word(seed, 1)});
  return std::uint64_t{out[0]} << 32 | out[1];
}

/// Uniform in [0, 1): the top 53 bits.
inline double random_unit(std::uint64_t seed, std::uint64_t position) {
  return static_cast<double>(random_bits(seed, position) >> 11) * 0x1p-53;
}

}  // namespace lathe
