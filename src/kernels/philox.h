// Philox4x32-10: random numbers as a function of a key and a counter (Salmon, Moraes, Dror, Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state to keep or to share,
// so a request's numbers depend neither on its batch nor on preemption.
#pragma once

#include <cstdint>

#include "base/float_formats.h"

namespace lathe {

struct PhiloxWords {
  std::uint32_t word[4];
  bool operator==(const PhiloxWords&) const = default;
};

inline constexpr int kPhiloxRounds = 10;
inline constexpr std::uint32_t kPhiloxFactors[2] = {0xD2511F53, 0xCD9E8D57};  // of words 0 and 2
inline constexpr std::uint32_t kPhiloxKeySteps[2] = {0x9E3779B9, 0xBB67AE85};

LATHE_HD inline PhiloxWords philox4x32(PhiloxWords counter, std::uint64_t key) {
  // Copied to constants: device code cannot index a host array.
  constexpr std::uint32_t step0 = kPhiloxKeySteps[0], step1 = kPhiloxKeySteps[1];
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t a = std::uint64_t{kPhiloxFactors[0]} * counter.word[0];
    const std::uint64_t b = std::uint64_t{kPhiloxFactors[1]} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(b >> 32) ^ counter.word[1] ^ key0,
                static_cast<std::uint32_t>(b),
                static_cast<std::uint32_t>(a >> 32) ^ counter.word[3] ^ key1,
                static_cast<std::uint32_t>(a)}};
    key0 += step0;
    key1 += step1;
  }
  return counter;
}

/// What the random words are for: the last word of the counter.
enum class PhiloxUse : std::uint32_t {
  bits = 0,          // random_bits()
  token_choice = 1,  // token_noise() (kernels/sampling_math.h)
};

/// 64 random bits, a function of (seed, position).
LATHE_HD inline std::uint64_t random_bits(std::uint64_t seed, std::uint64_t position) {
  const PhiloxWords out =
      philox4x32({{static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(position >> 32),
                   0, static_cast<std::uint32_t>(PhiloxUse::bits)}},
                 seed);
  return std::uint64_t{out.word[0]} << 32 | out.word[1];
}

}  // namespace lathe
