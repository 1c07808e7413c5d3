// Number of cases and seeds of the random tests, from the environment. By default every run has the
// same cases; `make nightly` runs more of them, with other seeds each day.
//
//   LATHE_TEST_SCALE  1 to 1000 (default 1): multiplies the number of random cases.
//   LATHE_TEST_SEED   0 to 2^32-1: mixed into every seed. Unset: tests use the seeds they name.
//
// If either is set, a test process that reads them prints both once, which is enough to repeat a
// failed run.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

namespace lathe {

namespace test_scale_detail {

/// Parses an integer from `least` to `most`; none if `text` has anything else.
inline std::optional<std::uint32_t> parse(std::string_view text, std::uint32_t least,
                                          std::uint32_t most) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < least || value > most) return std::nullopt;
  return value;
}

/// The finaliser of splitmix64: similar bases and seeds give unrelated results.
inline std::uint32_t mix(std::uint32_t base, std::uint32_t seed) {
  std::uint64_t x = (std::uint64_t{seed} << 32 | base) + 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return static_cast<std::uint32_t>((x ^ x >> 31) >> 32);
}

struct Settings {
  std::uint32_t scale = 1;
  std::optional<std::uint32_t> seed;
};

inline std::optional<std::uint32_t> from_environment(const char* name, std::uint32_t least,
                                                     std::uint32_t most) {
  const char* text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  const auto value = parse(text, least, most);
  if (!value) {
    std::fprintf(stderr, "%s: wanted an integer from %u to %u, got \"%s\"\n", name, least, most,
                 text);
    std::exit(2);
  }
  return value;
}

inline const Settings& settings() {
  static const Settings read = [] {
    Settings s;
    // At most 1000: the largest number of cases times that still fits an int.
    const auto scale = from_environment("LATHE_TEST_SCALE", 1, 1000);
    s.seed = from_environment("LATHE_TEST_SEED", 0, std::numeric_limits<std::uint32_t>::max());
    s.scale = scale.value_or(1);
    if (scale || s.seed) {
      std::printf("LATHE_TEST_SCALE=%u", s.scale);
      if (s.seed) std::printf(" LATHE_TEST_SEED=%u", *s.seed);
      std::printf("\n");
      std::fflush(stdout);
    }
    return s;
  }();
  return read;
}

}  // namespace test_scale_detail

/// Random tests multiply their number of cases by this.
inline int test_scale() { return static_cast<int>(test_scale_detail::settings().scale); }

/// `base`; mixed with LATHE_TEST_SEED if that is set.
inline std::uint32_t test_seed(std::uint32_t base) {
  const auto& seed = test_scale_detail::settings().seed;
  return seed ? test_scale_detail::mix(base, *seed) : base;
}

/// `list` repeated test_scale() times, for tests that make a random case for each element.
template <class T>
std::vector<T> scaled(const std::vector<T>& list) {
  std::vector<T> out;
  for (int round = 0; round < test_scale(); ++round)
    out.insert(out.end(), list.begin(), list.end());
  return out;
}
template <class T>
std::vector<T> scaled(std::initializer_list<T> list) {
  return scaled(std::vector<T>(list));
}

}  // namespace lathe
