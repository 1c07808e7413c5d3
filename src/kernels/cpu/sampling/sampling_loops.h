// The sampler's loops over a vocabulary, with SIMD: weights, their sums and bins, and the choice of
// a token.
#pragma once

#include <cstdint>

namespace lathe {

/// The lowest-ranking token that the filters keep. Larger weights rank first, then lower ids.
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

/// Sum and number of the weights in one bin. Weights are in the same bin if their bits, as
/// integers, agree above the lowest `shift` bits.
struct WeightBin {
  double sum = 0;
  std::int64_t count = 0;
};

/// The largest of n > 0 values; NaN if one is NaN or infinite.
float largest_finite(const float* x, std::int64_t n);
/// The largest of n > 0 values, which may be -inf.
double largest(const double* x, std::int64_t n);
/// Index of the first of n values that equals `value`. Precondition: there is one.
std::int64_t first_equal(const float* x, std::int64_t n, float value);
std::int64_t first_equal(const double* x, std::int64_t n, double value);

/// weights[i] = exp_of_nonpositive((x[i] - most) * factor), zero-padded from n to a multiple of
/// kSumBlock. x and `weights` may be the same.
void weigh(const float* x, std::int64_t n, double most, double factor, double* weights);
void weigh(const double* x, std::int64_t n, double most, double factor, double* weights);

// In the functions below, n is a multiple of kSumBlock.

/// Sum of the weights that `cut` keeps, in the order of ops/sampling.h.
double sum_kept(const double* weights, std::int64_t n, const Cut& cut);

/// Narrows [least, most] to the weights in it that `cut` keeps. Returns false and changes nothing
/// if there are none.
bool narrow_range(const double* weights, std::int64_t n, const Cut& cut, double& least,
                  double& most);

inline constexpr std::int64_t kWeightBins = 2048;
inline constexpr std::int64_t kSpareBins = 16;  // one per lane of a vector

/// Adds the weights in [least, most] that `cut` keeps to bins. Bin i begins at the bits of `least`
/// plus i << shift. bins: [kWeightBins + kSpareBins]; the last kSpareBins are scratch.
void add_to_bins(const double* weights, std::int64_t n, const Cut& cut, double least, double most,
                 int shift, WeightBin* bins);

/// Lists the tokens with weights in [least, most] that `cut` keeps, by id. Returns their number.
std::int64_t gather_range(const double* weights, std::int64_t n, const Cut& cut, double least,
                          double most, Candidate* out);

/// The token with the smallest -ln(noise) / weight that `cut` keeps. `likeliest`, of weight 1, is
/// where the search starts.
std::int32_t draw_token(const double* weights, std::int64_t n, const Cut& cut, std::uint64_t seed,
                        std::uint64_t position, std::int32_t likeliest);

}  // namespace lathe
