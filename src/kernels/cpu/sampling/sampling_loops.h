// The sampler's loops over a vocabulary: weights, their sums and bins, and the draw.
#pragma once

#include <cstdint>

namespace lathe {

/// The lowest-ranking token that filters keep: larger weights rank first, then lower ids.
struct Cut {
  double weight = 0;
  std::int32_t token = -1;

  bool keeps(double w, std::int32_t t) const { return w > weight || (w == weight && t <= token); }
};

struct Candidate {
  double weight = 0;
  std::int32_t token = 0;

  bool operator<(const Candidate& o) const {
    return weight != o.weight ? weight > o.weight : token < o.token;
  }
};

/// Weights whose bits, taken as integers, are in the same 2^shift.
struct WeightBin {
  double sum = 0;
  std::int64_t count = 0;
};

/// The largest of n > 0 values; NaN where one is NaN or infinite.
float largest_finite(const float* x, std::int64_t n);
/// The largest of n > 0 values, which may be -inf.
double largest(const double* x, std::int64_t n);
/// The first of n that equals `value`, which one does.
std::int64_t first_equal(const float* x, std::int64_t n, float value);
std::int64_t first_equal(const double* x, std::int64_t n, double value);

/// weights[i] = exp_of_nonpositive((x[i] - most) * factor), and 0 from n up to a multiple of
/// kSumBlock. x may be `weights`.
void weigh(const float* x, std::int64_t n, double most, double factor, double* weights);
void weigh(const double* x, std::int64_t n, double most, double factor, double* weights);

// In all that follow n is a multiple of kSumBlock.

/// Sum of what `cut` keeps, in the order of ops/sampling.h.
double sum_kept(const double* weights, std::int64_t n, const Cut& cut);

/// Narrows [least, most] to what `cut` keeps in it. False, and nothing changed: nothing.
bool narrow_range(const double* weights, std::int64_t n, const Cut& cut, double& least,
                  double& most);

inline constexpr std::int64_t kWeightBins = 2048;
inline constexpr std::int64_t kSpareBins = 16;  // a vector's lanes

/// Adds those that `cut` keeps in [least, most] to bins: bin i begins at the bits of `least` plus
/// i << shift. bins: [kWeightBins + kSpareBins], the last kSpareBins of no meaning.
void add_to_bins(const double* weights, std::int64_t n, const Cut& cut, double least, double most,
                 int shift, WeightBin* bins);

/// Those that `cut` keeps in [least, most], by id. Returns how many.
std::int64_t gather_range(const double* weights, std::int64_t n, const Cut& cut, double least,
                          double most, Candidate* out);

/// The token that `cut` keeps with the smallest -ln(noise) / weight. `likeliest` has weight 1,
/// which makes it a good one to begin with.
std::int32_t draw_token(const double* weights, std::int64_t n, const Cut& cut, std::uint64_t seed,
                        std::uint64_t position, std::int32_t likeliest);

}  // namespace lathe
