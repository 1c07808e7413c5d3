// Sampling: from a row of logits to a token.
//
//   1 penalties   repetition, then frequency, then presence
//   2 bias        logit_bias is added, tokens that are ruled out become -inf
//   3 temperature w_i = exp((x_i - max x) / temperature); 0 takes the token with the largest x
//   4 min_p       keeps w_i >= min_p
//   5 top_k       keeps the k largest of those
//   6 top_p       keeps the fewest largest whose sum reaches top_p of what is left
//   7 draw        the first token, by id, at which the running sum exceeds u times the whole sum
//
// Everything is f64, summed in the order of ids (top_p: of rank). Among equals the lower id ranks
// first. So a token depends on the logits' bits, the parameters, the history, seed and position.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ops/sampling_params.h"

namespace lathe {

struct TokenLogprob {
  std::int32_t token = 0;
  double logprob = 0;  // natural log, of the model's distribution before any parameter
};

struct SampledToken {
  std::int32_t token = 0;
  std::optional<double> logprob;  // with params.logprobs
  std::vector<TokenLogprob> top;  // [params.logprobs] likeliest first
};

struct SampleArgs {
  std::span<const float> logits;            // [vocab]
  const SamplingParams* params = nullptr;   // checked
  std::span<const std::int32_t> prompt;     // what the penalties look at
  std::span<const std::int32_t> answer;     // its size is the position that is drawn
  std::span<const std::int32_t> ruled_out;  // not all of the vocabulary
  std::uint64_t seed = 0;
};

/// Holds the temporaries of one row, so that sampling allocates nothing once it has run.
class Sampler {
 public:
  explicit Sampler(std::int32_t vocab);

  /// Nothing where a logit is NaN or infinite. O(vocab + history), and O(n log n) for the n
  /// candidates that top_p has to rank.
  std::optional<SampledToken> sample(const SampleArgs& args);

 private:
  struct Candidate {
    double weight = 0;
    std::int32_t token = 0;
    // Likelier, then lower id.
    bool operator<(const Candidate& o) const {
      return weight != o.weight ? weight > o.weight : token < o.token;
    }
  };
  void adjust(const SampleArgs& args);
  void weigh(double temperature);
  std::optional<Candidate> last_kept(const SamplingParams& params);
  std::int32_t draw(const std::optional<Candidate>& last, double u) const;
  void add_logprobs(const SampleArgs& args, SampledToken& out);

  std::vector<double> values_;        // [vocab] adjusted logits, then weights
  std::vector<std::int32_t> counts_;  // [vocab] all 0 between rows
  std::vector<Candidate> candidates_;
};

}  // namespace lathe
