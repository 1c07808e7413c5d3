// The sampler, a block per row at a time. Filters find their cut by bisection over the bits of the
// probabilities, each step a pass over the vocabulary.
#pragma once

#include <cmath>

#include "kernels/cuda/sm90/sampling/block_best.cuh"
#include "kernels/sampling_math.h"

namespace lathe::cuda {

/// The last token kept. Larger probabilities rank first, of equal ones the lower token.
struct ProbCut {
  double prob = 0;
  std::int32_t token = INT32_MAX;
};
__device__ inline bool kept(double w, std::int64_t token, const ProbCut& cut) {
  return w > 0 && (w > cut.prob || (w == cut.prob && token <= cut.token));
}

/// The highest cut for which enough(cut) holds, no token of which is beyond `from`; `from` where it
/// holds for none. enough() stays true as the cut falls, and every thread gets the same answer.
template <class Enough>
__device__ inline ProbCut find_cut(const ProbCut& from, std::int64_t vocab, const Enough& enough) {
  using sampling::bits_of_f64;
  using sampling::f64_of_bits;
  if (!enough(from)) return from;
  // Probabilities are relative to the largest, so at most 1; those above `low` are not enough,
  // those from `low` on are.
  std::uint64_t low = bits_of_f64(from.prob), high = bits_of_f64(1.0) + 1;
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    if (enough(ProbCut{f64_of_bits(middle), INT32_MAX})) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const double prob = f64_of_bits(low);
  std::int64_t below = -1;  // tokens up to it are not enough
  std::int64_t last = prob == from.prob && from.token < vocab ? from.token : vocab - 1;
  while (last - below > 1) {
    const std::int64_t middle = below + (last - below) / 2;
    if (enough(ProbCut{prob, static_cast<std::int32_t>(middle)})) {
      last = middle;
    } else {
      below = middle;
    }
  }
  return {prob, static_cast<std::int32_t>(last)};
}

class RowSampler {
 public:
  __device__ RowSampler(const SampleParams& p, const SampleRow& row, double* values,
                        SampleShared& shared)
      : p_(p), row_(row), values_(values), s_(shared) {}

  __device__ void run(std::int64_t at) {
    bool wild = false;
    Ranked mine{INFINITY, INT32_MAX};
    for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) {
      const float x = row_.logits[i];
      constexpr std::uint32_t kExponent = 0x7f800000u;
      wild |= (float_to_bits(x) & kExponent) == kExponent;
      offer(mine, -double{x}, i);
    }
    if (any_of_block(wild, s_)) {
      give(at, -1);
      return;
    }
    const Ranked model = first_ranked(mine, s_);
    const std::int32_t token = row_.adjusts != 0 ? choose_adjusted() : choose(model);
    give(at, token);
    if (row_.likeliest >= 0) add_logprobs(at, token, -model.value);
  }

 private:
  __device__ void give(std::int64_t at, std::int32_t token) {
    if (threadIdx.x != 0) return;
    p_.tokens[at] = token;
    p_.results->tokens[at] = token;
  }
  __device__ static void offer(Ranked& best, double value, std::int64_t token) {
    const Ranked one{value, static_cast<std::int32_t>(token)};
    if (ranks_before(one, best)) best = one;
  }
  __device__ double logit(std::int64_t i) const { return double{row_.logits[i]}; }

  __device__ std::int32_t choose(const Ranked& likeliest) {
    if (row_.temperature == 0) return likeliest.token;
    weigh(-likeliest.value, row_.temperature, [&](std::int64_t i) { return logit(i); });
    return draw();
  }

  // Each thread rules out tokens that it alone reads next.
  __device__ void rule_out_others() {
    for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) {
      if ((row_.allowed[i / 32] >> (i % 32) & 1u) == 0) values_[i] = -INFINITY;
    }
  }

  __device__ std::int32_t choose_adjusted() {
    for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) values_[i] = logit(i);
    sync_block();
    for (std::int64_t i = threadIdx.x; i < row_.seen_count; i += kSampleThreads) {
      const SeenToken seen = row_.seen[i];
      double& x = values_[seen.token];
      if (row_.repetition_penalty != 1) {
        x = x > 0 ? x / row_.repetition_penalty : x * row_.repetition_penalty;
      }
      if (seen.answered > 0) {
        x -= row_.frequency_penalty * seen.answered;
        x -= row_.presence_penalty;
      }
    }
    sync_block();
    if (threadIdx.x == 0) {
      for (std::int32_t i = 0; i < row_.bias_count; ++i) {
        values_[row_.bias[i].token] += double{row_.bias[i].bias};
      }
      for (std::int32_t i = 0; i < row_.ruled_out_count; ++i) {
        values_[row_.ruled_out[i]] = -INFINITY;
      }
    }
    sync_block();
    if (row_.allowed != nullptr) rule_out_others();
    Ranked mine{INFINITY, INT32_MAX};
    for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) {
      offer(mine, -values_[i], i);
    }
    const Ranked likeliest = first_ranked(mine, s_);
    if (row_.temperature == 0) return likeliest.token;
    weigh(-likeliest.value, row_.temperature, [&](std::int64_t i) { return values_[i]; });
    return draw();
  }

  template <class Logit>
  __device__ void weigh(double most, double temperature, const Logit& x) {
    const double factor = 1 / temperature;
    for (std::int64_t i = threadIdx.x; i < padded_vocab(p_.vocab); i += kSampleThreads) {
      values_[i] = i < p_.vocab ? exp_of_nonpositive((x(i) - most) * factor) : 0;
    }
    sync_block();
  }

  __device__ double sum_kept(const ProbCut& cut) {
    return sum_in_order(p_.vocab, s_, [&](std::int64_t i) {
      const double w = values_[i];
      return kept(w, i, cut) ? w : 0;
    });
  }
  // Exact: counts are whole numbers.
  __device__ double count_kept(const ProbCut& cut) {
    return sum_in_order(p_.vocab, s_,
                        [&](std::int64_t i) { return kept(values_[i], i, cut) ? 1.0 : 0.0; });
  }

  __device__ std::int32_t draw() {
    ProbCut cut;
    if (row_.min_p > 0) cut.prob = row_.min_p;
    if (row_.top_k != -1 && row_.top_k < p_.vocab) {
      const auto k = static_cast<double>(row_.top_k);
      cut = find_cut(cut, p_.vocab, [&](const ProbCut& c) { return count_kept(c) >= k; });
    }
    if (row_.top_p < 1) {
      const double share = row_.top_p * sum_kept(cut);
      cut = find_cut(cut, p_.vocab, [&](const ProbCut& c) { return sum_kept(c) >= share; });
    }
    Ranked mine{INFINITY, INT32_MAX};
    for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) {
      if (!kept(values_[i], i, cut)) continue;
      const auto token = static_cast<std::int32_t>(i);
      offer(mine, -log_of_positive(token_noise(row_.seed, row_.position, token)) / values_[i], i);
    }
    return first_ranked(mine, s_).token;
  }

  __device__ void add_logprobs(std::int64_t at, std::int32_t token, double most) {
    sync_block();
    weigh(most, 1, [&](std::int64_t i) { return logit(i); });
    const double log_sum = most + log_of_positive(sum_kept(ProbCut{}));
    const SampleResults& results = *p_.results;
    if (threadIdx.x == 0) results.logprobs[at] = logit(token) - log_sum;
    Ranked last{-INFINITY, -1};
    for (std::int32_t n = 0; n < row_.likeliest; ++n) {
      Ranked mine{INFINITY, INT32_MAX};
      for (std::int64_t i = threadIdx.x; i < p_.vocab; i += kSampleThreads) {
        const Ranked one{-logit(i), static_cast<std::int32_t>(i)};
        if (ranks_before(last, one) && ranks_before(one, mine)) mine = one;
      }
      last = first_ranked(mine, s_);
      if (threadIdx.x == 0) {
        results.top_tokens[row_.top + n] = last.token;
        results.top_logprobs[row_.top + n] = -last.value - log_sum;
      }
    }
    for (std::int32_t n = static_cast<std::int32_t>(threadIdx.x); n < row_.asked_count;
         n += kSampleThreads) {
      results.top_logprobs[row_.top + row_.likeliest + n] = logit(row_.asked[n]) - log_sum;
    }
  }

  const SampleParams& p_;
  const SampleRow& row_;
  double* const values_;
  SampleShared& s_;
};

static __global__ void __launch_bounds__(kSampleThreads, 1)
    sample_kernel(const __grid_constant__ SampleParams p) {
  __shared__ SampleShared shared;
  let_next_begin();
  wait_for_previous();
  double* values = p.values + blockIdx.x * padded_vocab(p.vocab);
  for (std::int64_t row = blockIdx.x; row < p.count; row += gridDim.x) {
    if (p.rows[row].logits == nullptr) continue;
    RowSampler(p, p.rows[row], values, shared).run(row);
    sync_block();
  }
}

static __global__ void __launch_bounds__(kSampleThreads)
    take_drawn_kernel(const __grid_constant__ TakeDrawnParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSampleThreads + threadIdx.x;
  if (i < p.count && p.tokens[i] <= kFirstDraw) p.tokens[i] = p.drawn[kFirstDraw - p.tokens[i]];
}

}  // namespace lathe::cuda
