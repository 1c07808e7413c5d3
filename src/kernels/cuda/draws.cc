// Draws a step's tokens on the GPU: parameters to the device, the sampler, results back through
// pinned memory.
#include "kernels/cuda/draws.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/cuda/common/memory.h"

namespace lathe::cuda {
namespace {

// Rows sampled at once if rows need their probabilities in memory: 1.2 MB each at a vocabulary of
// 150,000.
constexpr std::int64_t kWorkers = 64;

// Tokens of the history, each once, for the penalties.
void count_seen(const SampleArgs& args, std::vector<SeenToken>& seen) {
  seen.clear();
  const SamplingParams& p = *args.params;
  if (p.repetition_penalty != 1) {
    for (const std::int32_t t : args.prompt) seen.push_back({t, 0});
  }
  for (const std::int32_t t : args.answer) seen.push_back({t, 1});
  std::sort(seen.begin(), seen.end(),
            [](const SeenToken& a, const SeenToken& b) { return a.token < b.token; });
  std::size_t kept = 0;
  for (const SeenToken& s : seen) {
    if (kept > 0 && seen[kept - 1].token == s.token) {
      seen[kept - 1].answered += s.answered;
    } else {
      seen[kept++] = s;
    }
  }
  seen.resize(kept);
}

}  // namespace

// The results of a call, side by side on the device and in pinned memory.
struct Draws::Layout {
  std::int64_t logprobs, top_logprobs, tokens, top_tokens, bytes;
  Layout(std::int64_t count, std::int64_t top)
      : logprobs(0),
        top_logprobs(8 * count),
        tokens(top_logprobs + 8 * top),
        top_tokens(tokens + 4 * count),
        bytes((top_tokens + 4 * top + 255) / 256 * 256) {}
};

Result<std::span<const SampleRow>> Draws::bring(std::span<const SampleArgs> rows, Staging& staging,
                                                Pending& pending) {
  rows_.clear();
  for (const SampleArgs& args : rows) {
    const SamplingParams& p = *args.params;
    SampleRow row{.logits = args.logits.data(),
                  .seed = args.seed,
                  .position = args.position(),
                  .temperature = double{p.temperature},
                  .min_p = double{p.min_p},
                  .top_p = double{p.top_p},
                  .repetition_penalty = double{p.repetition_penalty},
                  .frequency_penalty = double{p.frequency_penalty},
                  .presence_penalty = double{p.presence_penalty},
                  .top_k = p.top_k,
                  .likeliest = p.logprobs.value_or(-1),
                  .adjusts = adjusts_logits(args) ? 1 : 0,
                  .top = pending.top};
    pending.likeliest.push_back(row.likeliest);
    pending.top += std::max(0, row.likeliest);
    auto& asked = pending.asked.emplace_back();
    if (row.likeliest >= 0 && !p.logprob_ids.empty()) {
      asked = p.logprob_ids;
      const auto there = staging.add_list(std::span<const std::int32_t>(asked));
      if (!there) return there.error();
      row.asked = there->data();
      row.asked_count = static_cast<std::int32_t>(there->size());
      pending.top += std::ssize(asked);
    }
    if (has_penalties(p)) {
      count_seen(args, seen_);
      const auto seen = staging.add_list(std::span<const SeenToken>(seen_));
      if (!seen) return seen.error();
      row.seen = seen->data();
      row.seen_count = static_cast<std::int32_t>(seen->size());
    }
    const auto bias = staging.add_list(std::span<const LogitBias>(p.logit_bias));
    if (!bias) return bias.error();
    row.bias = bias->data();
    row.bias_count = static_cast<std::int32_t>(bias->size());
    const auto ruled_out = staging.add_list(args.ruled_out);
    if (!ruled_out) return ruled_out.error();
    row.ruled_out = ruled_out->data();
    row.ruled_out_count = static_cast<std::int32_t>(ruled_out->size());
    if (!args.allowed.empty()) {
      const auto allowed = staging.add_list(args.allowed);
      if (!allowed) return allowed.error();
      row.allowed = allowed->data();
    }
    rows_.push_back(row);
  }
  return staging.add_list(std::span<const SampleRow>(rows_));
}

Result<void> Draws::start(std::span<const SampleArgs> rows,
                          std::span<std::optional<SampledToken>> out, Staging& staging,
                          Arena& tensors, cudaStream_t stream) {
  if (rows.empty()) return {};
  OfStep& step = steps_[now_];
  Pending pending{.out = out, .likeliest = {}, .asked = {}, .at = step.used};
  const auto there = bring(rows, staging, pending);
  if (!there) return there.error();
  if (auto ok = staging.flush(stream); !ok) return ok;

  const auto count = std::ssize(rows);
  const Layout layout(count, pending.top);
  if (auto ok = make_room(step, layout.bytes); !ok) return ok;
  std::byte* made = made_.get() + step.used;
  const Arena::Scope scope(tensors);
  const auto vocab = std::ssize(rows[0].logits);
  const bool weighs = std::any_of(rows_.begin(), rows_.end(), [](const SampleRow& r) {
    return r.temperature != 0 || r.adjusts != 0 || r.likeliest >= 0;
  });
  SampleParams p{.rows = there->data(), .count = count, .vocab = vocab};
  p.workers = static_cast<std::int32_t>(weighs ? std::min(count, kWorkers) : count);
  p.values = tensors.take_array<double>(weighs ? p.workers * padded_vocab(vocab) : 0);
  p.logprobs = reinterpret_cast<double*>(made + layout.logprobs);
  p.top_logprobs = reinterpret_cast<double*>(made + layout.top_logprobs);
  p.tokens = reinterpret_cast<std::int32_t*>(made + layout.tokens);
  p.top_tokens = reinterpret_cast<std::int32_t*>(made + layout.top_tokens);
  if (const cudaError_t status = launch_sample(p, stream); status != cudaSuccess) {
    return launch_result(status, {"sample", fmt::format("{} rows of {}", count, vocab),
                                  std::source_location::current()});
  }
  tokens_ = p.tokens;
  const std::span<std::byte> back(step.results.get() + pending.at,
                                  static_cast<std::size_t>(layout.bytes));
  if (auto ok = copy_to_host(made, back, stream); !ok) return ok;
  step.used += layout.bytes;
  step.pending.push_back(std::move(pending));
  return {};
}

// On the device both steps use the same bytes: a step's results are on their way to the host before
// the next one writes its own.
Result<void> Draws::make_room(OfStep& step, std::int64_t bytes) {
  if (step.used + bytes > step.bytes) {
    LATHE_CHECK(step.pending.empty(), "results of one call and the next wait");
    const std::int64_t size = std::max<std::int64_t>(2 * bytes, 64 << 10);
    auto larger = allocate_pinned_bytes(size);
    if (!larger) return larger.error();
    step.results = std::move(*larger);
    step.bytes = size;
  }
  if (step.bytes > made_bytes_) {
    auto larger = allocate_device_bytes(step.bytes);
    if (!larger) return larger.error();
    made_ = std::move(*larger);
    made_bytes_ = step.bytes;
  }
  return {};
}

void Draws::finish(OfStep& step) {
  for (const Pending& p : step.pending) {
    const Layout layout(std::ssize(p.out), p.top);
    const std::byte* at = step.results.get() + p.at;
    const auto* logprobs = reinterpret_cast<const double*>(at + layout.logprobs);
    const auto* top_logprobs = reinterpret_cast<const double*>(at + layout.top_logprobs);
    const auto* tokens = reinterpret_cast<const std::int32_t*>(at + layout.tokens);
    const auto* top_tokens = reinterpret_cast<const std::int32_t*>(at + layout.top_tokens);
    for (std::size_t i = 0; i < p.out.size(); ++i) {
      p.out[i].reset();
      const std::int32_t likeliest = p.likeliest[i];
      if (tokens[i] >= 0) {
        SampledToken& token = p.out[i].emplace();
        token.token = tokens[i];
        if (likeliest >= 0) token.logprob = logprobs[i];
        for (std::int32_t n = 0; n < likeliest; ++n) {
          token.top.push_back({top_tokens[n], top_logprobs[n]});
        }
        for (std::size_t n = 0; n < p.asked[i].size(); ++n) {
          token.asked.push_back(
              {p.asked[i][n], top_logprobs[static_cast<std::size_t>(likeliest) + n]});
        }
      }
      const std::int64_t entries = std::max(0, likeliest) + std::ssize(p.asked[i]);
      top_tokens += entries;
      top_logprobs += entries;
    }
  }
  step.drop();
}

}  // namespace lathe::cuda
