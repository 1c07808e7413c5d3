// The sampler: a team of blocks processes one row at a time. Its cost is the number of passes over
// the vocabulary.
#pragma once

#include <cmath>

#include "kernels/cuda/sm90/sampling/cut_search.cuh"

namespace lathe::cuda {

class RowSampler {
 public:
  __device__ RowSampler(const SampleParams& p, const SampleRow& row, double* values,
                        SampleTeam& team)
      : p_(p), row_(row), values_(values), team_(team) {}

  __device__ void run(std::int64_t at) {
    bool wild = false;
    float most = -INFINITY;
    auto likeliest = INT32_MAX;
    constexpr int kBatch = 2 * kSampleBatch;
    for (std::int64_t i = first(); i < team_.last_token; i += kBatch * kSampleThreads) {
      float x[kBatch];
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        const std::int64_t token = i + j * kSampleThreads;
        x[j] = row_.logits[token < team_.last_token ? token : i];
      }
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        constexpr std::uint32_t kExponent = 0x7f800000u;
        wild |= (float_to_bits(x[j]) & kExponent) == kExponent;
        if (x[j] > most) {  // among equal ones the lower token, which came first
          most = x[j];
          likeliest = static_cast<std::int32_t>(i) + j * kSampleThreads;
        }
      }
    }
    const Ranked candidate = wild ? Ranked{-INFINITY, -1} : Ranked{-double{most}, likeliest};
    const Ranked model = first_ranked(candidate, team_);
    if (model.token < 0) {
      give(at, -1);
      return;
    }
    const std::int32_t token = row_.adjusts != 0 ? choose_adjusted() : choose(model);
    give(at, token);
    if (row_.likeliest >= 0) add_logprobs(at, token, -model.value);
  }

 private:
  /// This thread's first token.
  __device__ std::int64_t first() const { return team_.first + threadIdx.x; }
  __device__ bool has(std::int32_t token) const {
    return token >= team_.first && token < team_.last;
  }
  __device__ void give(std::int64_t at, std::int32_t token) {
    if (threadIdx.x != 0 || team_.rank != 0) return;
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

  // Each thread rules out only tokens that it reads itself, so no barrier is needed.
  __device__ void rule_out_others() {
    for (std::int64_t i = first(); i < team_.last_token; i += kSampleThreads) {
      if ((row_.allowed[i / 32] >> (i % 32) & 1u) == 0) values_[i] = -INFINITY;
    }
  }

  __device__ std::int32_t choose_adjusted() {
    for (std::int64_t i = first(); i < team_.last_token; i += kSampleThreads) {
      values_[i] = logit(i);
    }
    sync_block();
    for (std::int64_t i = threadIdx.x; i < row_.seen_count; i += kSampleThreads) {
      const SeenToken seen = row_.seen[i];
      if (!has(seen.token)) continue;
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
        if (has(row_.bias[i].token)) values_[row_.bias[i].token] += double{row_.bias[i].bias};
      }
      for (std::int32_t i = 0; i < row_.ruled_out_count; ++i) {
        if (has(row_.ruled_out[i])) values_[row_.ruled_out[i]] = -INFINITY;
      }
    }
    sync_block();
    if (row_.allowed != nullptr) rule_out_others();
    Ranked mine{INFINITY, INT32_MAX};
    for (std::int64_t i = first(); i < team_.last_token; i += kSampleThreads) {
      offer(mine, -values_[i], i);
    }
    const Ranked likeliest = first_ranked(mine, team_);
    if (row_.temperature == 0) return likeliest.token;
    weigh(-likeliest.value, row_.temperature, [&](std::int64_t i) { return values_[i]; });
    return draw();
  }

  template <class Logit>
  __device__ void weigh(double most, double temperature, const Logit& x) {
    const double factor = 1 / temperature;
    const std::int64_t end = team_.last;
    // Several at a time, because an exponential is one long dependency chain.
    constexpr int kBatch = 4;
    for (std::int64_t i = first(); i < end; i += kBatch * kSampleThreads) {
      double w[kBatch];
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        const std::int64_t token = i + j * kSampleThreads;
        w[j] = token < p_.vocab ? exp_of_nonpositive((x(token) - most) * factor) : 0;
      }
      LATHE_UNROLL
      for (int j = 0; j < kBatch; ++j) {
        const std::int64_t token = i + j * kSampleThreads;
        if (token < end) values_[token] = w[j];
      }
    }
    sync_block();
  }

  __device__ std::int32_t draw() {
    const CutSearch search(values_, p_.vocab, team_);
    ProbCut cut;
    if (row_.min_p > 0) cut.prob = row_.min_p;
    if (row_.top_k != -1 && row_.top_k < p_.vocab) {
      cut = search.first(cut, row_.top_k);
    }
    if (row_.top_p < 1) {
      cut = search.reaching(cut, row_.top_p * search.sum_kept(cut));
    }
    Ranked mine{INFINITY, INT32_MAX};
    for_values(values_, team_, [&](std::int64_t i, double w) {
      if (!kept(w, i, cut)) return;
      const auto token = static_cast<std::int32_t>(i);
      offer(mine, -log_of_positive(token_noise(row_.seed, row_.position, token)) / w, i);
    });
    return first_ranked(mine, team_).token;
  }

  __device__ void add_logprobs(std::int64_t at, std::int32_t token, double most) {
    sync_block();
    weigh(most, 1, [&](std::int64_t i) { return logit(i); });
    const double log_sum = most + log_of_positive(CutSearch(values_, p_.vocab, team_).sum_kept({}));
    const SampleResults& results = *p_.results;
    const bool reports = team_.rank == 0;
    if (reports && threadIdx.x == 0) results.logprobs[at] = logit(token) - log_sum;
    Ranked last{-INFINITY, -1};
    for (std::int32_t n = 0; n < row_.likeliest; ++n) {
      Ranked mine{INFINITY, INT32_MAX};
      for (std::int64_t i = first(); i < team_.last_token; i += kSampleThreads) {
        const Ranked one{-logit(i), static_cast<std::int32_t>(i)};
        if (ranks_before(last, one) && ranks_before(one, mine)) mine = one;
      }
      last = first_ranked(mine, team_);
      if (reports && threadIdx.x == 0) {
        results.top_tokens[row_.top + n] = last.token;
        results.top_logprobs[row_.top + n] = -last.value - log_sum;
      }
    }
    if (!reports) return;
    for (std::int32_t n = static_cast<std::int32_t>(threadIdx.x); n < row_.asked_count;
         n += kSampleThreads) {
      results.top_logprobs[row_.top + row_.likeliest + n] = logit(row_.asked[n]) - log_sum;
    }
  }

  const SampleParams& p_;
  const SampleRow& row_;
  double* const values_;
  SampleTeam& team_;
};

static __global__ void __launch_bounds__(kSampleThreads, 1)
    sample_kernel(const __grid_constant__ SampleParams p) {
  LATHE_DYNAMIC_SHARED(shared);
  let_next_begin();
  wait_for_previous();
  SampleTeam team(shared, p.vocab, p.blocks);
  const std::int64_t worker = blockIdx.x / p.blocks;
  double* values = p.values + worker * padded_vocab(p.vocab);
  for (std::int64_t row = worker; row < p.count; row += p.workers) {
    if (p.rows[row].logits == nullptr) continue;
    RowSampler(p, p.rows[row], values, team).run(row);
    team.sync();  // the others have read this block's shared memory
  }
}

static __global__ void __launch_bounds__(kSampleThreads)
    take_drawn_kernel(const __grid_constant__ TakeDrawnParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSampleThreads + threadIdx.x;
  if (i >= p.count || p.tokens[i] > kFirstDraw) return;
  p.tokens[i] = p.drawn[(kFirstDraw - p.tokens[i]) * p.step];
}

static __global__ void __launch_bounds__(kSampleThreads)
    place_draws_kernel(const __grid_constant__ PlaceDrawsParams p) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t i = std::int64_t{blockIdx.x} * kSampleThreads + threadIdx.x;
  if (i >= p.count || p.rows[i].logits == nullptr || p.rows[i].place < 0) return;
  p.records[p.rows[i].place].token = p.tokens[i];
}

}  // namespace lathe::cuda
