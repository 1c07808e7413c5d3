#include "kernels/cpu/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/integers.h"
#include "kernels/cpu/sampling/sampling_select.h"
#include "kernels/sampling_math.h"

namespace lathe {
namespace {

// One thread's temporaries.
struct RowMemory {
  double* values = nullptr;        // [vocab rounded up] adjusted logits, then weights
  std::int32_t* counts = nullptr;  // [vocab]
  SelectMemory select;

  static std::int64_t bytes(std::int64_t vocab) {
    return round_up(vocab, kSumBlock) * std::int64_t{sizeof(double)} +
           (kWeightBins + kSpareBins) * std::int64_t{sizeof(WeightBin)} +
           round_up(vocab, 16) * std::int64_t{sizeof(Candidate) + sizeof(std::int32_t)};
  }
  RowMemory(std::byte* at, std::int64_t vocab) {
    const auto take = [&]<class T>(T*& array, std::int64_t n) {
      array = reinterpret_cast<T*>(at);
      at += n * static_cast<std::int64_t>(sizeof(T));
    };
    take(values, round_up(vocab, kSumBlock));
    take(select.bins, kWeightBins + kSpareBins);
    take(select.candidates, round_up(vocab, 16));
    take(counts, round_up(vocab, 16));
  }
};

class Row {
 public:
  Row(const SampleArgs& args, const RowMemory& memory)
      : args_(args), params_(*args.params), memory_(memory), vocab_(std::ssize(args.logits)) {}

  std::optional<SampledToken> sample() {
    const float most = largest_finite(args_.logits.data(), vocab_);
    if (std::isnan(most)) return std::nullopt;
    SampledToken out;
    if (adjusts_logits(args_)) {
      adjust();
      const double* x = memory_.values;
      out.token = choose(x, largest(x, vocab_));
    } else {
      out.token = choose(args_.logits.data(), most);
    }
    if (params_.logprobs) add_logprobs(most, out);
    return out;
  }

 private:
  double& value(std::int32_t t) { return memory_.values[t]; }
  std::int32_t& count(std::int32_t t) { return memory_.counts[t]; }
  std::int64_t padded() const { return round_up(vocab_, kSumBlock); }

  void adjust() {
    std::copy(args_.logits.begin(), args_.logits.end(), memory_.values);
    if (params_.repetition_penalty != 1) penalise_repetition(double{params_.repetition_penalty});
    if (params_.frequency_penalty != 0 || params_.presence_penalty != 0) penalise_answer();
    for (const LogitBias& b : params_.logit_bias) value(b.token) += double{b.bias};
    for (std::int32_t t : args_.ruled_out) value(t) = -std::numeric_limits<double>::infinity();
    if (!args_.allowed.empty()) rule_out_others();
  }
  // 32 tokens (a word of bits) at a time: usually none of them is allowed, or all.
  void rule_out_others() {
    for (std::int64_t first = 0; first < vocab_; first += 32) {
      const std::uint32_t word = args_.allowed[static_cast<std::size_t>(first / 32)];
      if (word == ~std::uint32_t{0}) continue;
      const std::int64_t end = std::min<std::int64_t>(first + 32, vocab_);
      for (std::int64_t t = first; t < end; ++t) {
        if ((word >> (t - first) & 1u) == 0) {
          memory_.values[t] = -std::numeric_limits<double>::infinity();
        }
      }
    }
  }
  // A token's count is read when it is first met and then reset to 0, so it is adjusted once.
  void penalise_repetition(double penalty) {
    std::fill_n(memory_.counts, vocab_, 0);
    for (const auto& part : {args_.prompt, args_.answer}) {
      for (std::int32_t t : part) count(t) = 1;
    }
    for (const auto& part : {args_.prompt, args_.answer}) {
      for (std::int32_t t : part) {
        if (std::exchange(count(t), 0) == 0) continue;
        double& x = value(t);
        x = x > 0 ? x / penalty : x * penalty;
      }
    }
  }
  void penalise_answer() {
    std::fill_n(memory_.counts, vocab_, 0);
    for (std::int32_t t : args_.answer) ++count(t);
    for (std::int32_t t : args_.answer) {
      const int times = std::exchange(count(t), 0);
      if (times == 0) continue;
      value(t) -= double{params_.frequency_penalty} * times;
      value(t) -= double{params_.presence_penalty};
    }
  }

  template <class T>  // float: the logits; double: adjusted, where the weights will be
  std::int32_t choose(const T* x, T most) {
    const auto likeliest = static_cast<std::int32_t>(first_equal(x, vocab_, most));
    if (params_.temperature == 0) return likeliest;
    double* w = memory_.values;
    weigh(x, vocab_, double{most}, 1 / double{params_.temperature}, w);
    Cut cut;
    if (params_.min_p > 0) cut = {double{params_.min_p}, std::numeric_limits<std::int32_t>::max()};
    if (params_.top_k != -1 && params_.top_k < vocab_) {
      cut = cut_top_k(w, padded(), cut, params_.top_k, memory_.select);
    }
    if (params_.top_p < 1) {
      cut = cut_top_p(w, padded(), cut, double{params_.top_p}, memory_.select);
    }
    return draw_token(w, padded(), cut, args_.seed, args_.position(), likeliest);
  }

  void add_logprobs(float most, SampledToken& out) {
    const std::span<const float> x = args_.logits;
    weigh(x.data(), vocab_, double{most}, 1, memory_.values);
    const double log_sum =
        double{most} + log_of_positive(sum_kept(memory_.values, padded(), Cut()));
    out.logprob = double{x[static_cast<std::size_t>(out.token)]} - log_sum;
    // A heap of the n most likely tokens so far, with the least likely on top.
    Candidate* heap = memory_.select.candidates;
    const auto n = *params_.logprobs;
    std::int32_t held = 0;
    for (std::int32_t t = 0; t < vocab_; ++t) {
      const Candidate c{double{x[static_cast<std::size_t>(t)]}, t};
      if (held < n) {
        heap[held++] = c;
        std::push_heap(heap, heap + held);
      } else if (n > 0 && c < heap[0]) {
        std::pop_heap(heap, heap + held);
        heap[held - 1] = c;
        std::push_heap(heap, heap + held);
      }
    }
    std::sort_heap(heap, heap + held);
    for (const Candidate& c : std::span(heap, static_cast<std::size_t>(held))) {
      out.top.push_back({c.token, c.weight - log_sum});
    }
    for (std::int32_t t : params_.logprob_ids) {
      out.asked.push_back({t, double{x[static_cast<std::size_t>(t)]} - log_sum});
    }
  }

  const SampleArgs& args_;
  const SamplingParams& params_;
  const RowMemory& memory_;
  const std::int64_t vocab_;
};

}  // namespace

void cpu_sample(const Execution& execution, std::span<const SampleArgs> rows,
                std::span<std::optional<SampledToken>> out) {
  const std::int64_t count = std::ssize(rows);
  if (count == 0) return;
  const std::int64_t vocab = std::ssize(rows[0].logits);
  const std::int64_t bytes = round_up(RowMemory::bytes(vocab), 64);
  const bool shared = execution.threads != nullptr && count > 1;
  const std::int64_t workers = shared ? execution.threads->threads() : 1;
  Scratch own;
  Scratch& scratch = execution.scratch != nullptr ? *execution.scratch : own;
  std::byte* memory = scratch.take(workers * bytes);
  auto run = [&](std::int64_t i, int worker) {
    const auto at = static_cast<std::size_t>(i);
    out[at] = Row(rows[at], RowMemory(memory + worker * bytes, vocab)).sample();
  };
  if (shared) return execution.threads->run(count, run);
  for (std::int64_t i = 0; i < count; ++i) run(i, 0);
}

}  // namespace lathe
