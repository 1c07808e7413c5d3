#include "kernels/cuda/operators/sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/common/cuda_error.h"
#include "kernels/limits.h"

namespace lathe::cuda {
namespace {

// Counts each token of the history once, for the penalties. places: [vocab] zeros, before and
// after.
void count_seen(const SampleArgs& args, std::vector<std::int32_t>& places,
                std::vector<SeenToken>& seen) {
  seen.clear();
  const auto see = [&](std::int32_t token, std::int32_t answered) {
    std::int32_t& place = places[static_cast<std::size_t>(token)];
    if (place == 0) {
      seen.push_back({token, 0});
      place = static_cast<std::int32_t>(seen.size());
    }
    seen[static_cast<std::size_t>(place) - 1].answered += answered;
  };
  if (args.params->repetition_penalty != 1) {
    for (const std::int32_t t : args.prompt) see(t, 0);
  }
  for (const std::int32_t t : args.answer) see(t, 1);
  for (const SeenToken& s : seen) places[static_cast<std::size_t>(s.token)] = 0;
}

constexpr std::int64_t kRecords = 16 << 10;  // of a step: its rows that give logits

}  // namespace

// Where the results of a call are in pinned memory, in bytes from its start.
struct Sampler::Layout {
  std::int64_t logprobs, top_logprobs, tokens, top_tokens, bytes;
  Layout(std::int64_t count, std::int64_t top)
      : logprobs(0),
        top_logprobs(8 * count),
        tokens(top_logprobs + 8 * top),
        top_tokens(tokens + 4 * count),
        bytes((top_tokens + 4 * top + 255) / 256 * 256) {}
};

// Copies a row's lists: tokens asked for, penalties, biases, and tokens that are ruled out or
// allowed.
Result<void> Sampler::copy_lists(const SampleArgs& args, Staging& staging, SampleRow& row) {
  const SamplingParams& p = *args.params;
  if (row.likeliest >= 0 && !p.logprob_ids.empty()) {
    const auto there = staging.add_list(std::span<const std::int32_t>(p.logprob_ids));
    if (!there) return there.error();
    row.asked = there->data();
    row.asked_count = static_cast<std::int32_t>(there->size());
  }
  if (has_penalties(p)) {
    if (seen_places_.size() < args.logits.size()) seen_places_.resize(args.logits.size());
    count_seen(args, seen_places_, seen_);
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
  const auto allowed = staging.add_list(args.allowed);
  if (!allowed) return allowed.error();
  row.allowed = allowed->data();
  return {};
}

Result<void> Sampler::prepare(std::span<const SampleArgs> rows,
                              std::span<std::optional<SampledToken>> out, std::int64_t places,
                              Staging& staging) {
  constexpr std::int64_t kHead = 64;         // bytes of SampleResults before the rows
  constexpr std::int64_t kLeast = 16 << 10;  // smallest allocation of sampled tokens
  static_assert(sizeof(SampleResults) <= kHead);
  prepared_.reset();
  if (rows.empty()) return {};
  const auto count = std::ssize(rows);
  // Taken before lists of variable length, so that a recording finds it at the same address.
  const auto place = staging.take(kHead + places * static_cast<std::int64_t>(sizeof(SampleRow)));
  if (!place) return place.error();
  auto* pinned_rows = reinterpret_cast<SampleRow*>(place->pinned + kHead);
  OfStep& step = steps_[now_];
  Prepared b{.pending = {.out = out, .at = step.used}, .params = {}};
  // If every row has space for its probabilities, one recording serves greedy and other rows.
  b.weighs = places <= kSampledRows;
  Pending& pending = b.pending;
  for (std::int64_t i = 0; i < count; ++i) {
    const SampleArgs& args = rows[static_cast<std::size_t>(i)];
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
                  .top = pending.top,
                  .place = static_cast<std::int32_t>(args.place)};
    if (row.adjusts != 0 || row.likeliest >= 0) {
      if (auto ok = copy_lists(args, staging, row); !ok) return ok;
    }
    if (row.likeliest >= 0) {
      pending.wanted.resize(rows.size());
      Wanted& wanted = pending.wanted[static_cast<std::size_t>(i)];
      wanted = {row.likeliest, p.logprob_ids};
      pending.top += row.likeliest + std::ssize(wanted.asked);
    }
    b.weighs = b.weighs || row.temperature != 0 || row.adjusts != 0 || row.likeliest >= 0;
    std::construct_at(pinned_rows + i, row);
  }
  for (std::int64_t i = count; i < places; ++i) std::construct_at(pinned_rows + i);

  const Layout layout(count, pending.top);
  if (auto ok = make_room(step, layout.bytes); !ok) return ok;
  std::byte* at = step.results.get() + pending.at;
  std::construct_at(reinterpret_cast<SampleResults*>(place->pinned),
                    SampleResults{reinterpret_cast<std::int32_t*>(at + layout.tokens),
                                  reinterpret_cast<double*>(at + layout.logprobs),
                                  reinterpret_cast<std::int32_t*>(at + layout.top_tokens),
                                  reinterpret_cast<double*>(at + layout.top_logprobs)});
  std::byte* drawn = sampled_.take(std::max(kLeast, 4 * places));
  if (drawn == nullptr) return no_scratch(4 * places);
  b.params = {
      .rows = reinterpret_cast<const SampleRow*>(place->device + kHead),
      .results = reinterpret_cast<const SampleResults*>(place->device),
      .count = places,
      .vocab = std::ssize(rows[0].logits),
      .workers = static_cast<std::int32_t>(b.weighs ? std::min(places, kSampledRows) : places),
      .tokens = reinterpret_cast<std::int32_t*>(drawn)};
  b.params.blocks = blocks_of_row(b.params.workers, b.params.vocab);
  prepared_ = std::move(b);
  return {};
}

std::uint64_t Sampler::key() const {
  if (!prepared_) return 0;
  const SampleParams& p = prepared_->params;
  std::uint64_t key = 1;
  for (const std::uint64_t v :
       {reinterpret_cast<std::uint64_t>(p.rows), reinterpret_cast<std::uint64_t>(p.tokens),
        static_cast<std::uint64_t>(p.count), static_cast<std::uint64_t>(p.vocab),
        std::uint64_t{prepared_->weighs}}) {
    key = (key ^ v) * 0x9e3779b97f4a7c15u;
    key ^= key >> 29;
  }
  return key;
}

Result<void> Sampler::start(Arena& tensors, cudaStream_t stream) {
  if (!prepared_) return {};
  const Arena::Scope scope(tensors);
  SampleParams p = prepared_->params;
  p.values = tensors.take_array<double>(prepared_->weighs ? p.workers * padded_vocab(p.vocab) : 0);
  if (const cudaError_t status = launch_sample(p, stream); status != cudaSuccess) {
    prepared_.reset();
    return launch_result(status, {"sample", fmt::format("{} rows of {}", p.count, p.vocab),
                                  std::source_location::current()});
  }
  started_ = p;
  started();
  return {};
}

Result<void> Sampler::reserve_records() {
  constexpr auto kBytes = kRecords * static_cast<std::int64_t>(sizeof(DrawRecord));
  if (records_.take(kBytes) == nullptr) return no_scratch(kBytes);
  return {};
}

Result<DrawRecord*> Sampler::place_draws(std::int64_t rows, cudaStream_t stream) {
  if (rows > kRecords) {
    return Error{ErrorCode::unsupported, "rows of a step that give logits",
                 fmt::format("up to {} on several GPUs", kRecords), fmt::format("{}", rows), ""};
  }
  auto* records = reinterpret_cast<DrawRecord*>(records_.take(1));
  const SampleParams p = std::exchange(started_, {});
  const cudaError_t status = launch_place_draws(
      {.rows = p.rows, .tokens = p.tokens, .records = records, .count = p.count}, stream);
  if (auto ok = launch_result(status, {"place_draws", fmt::format("{} rows", p.count),
                                       std::source_location::current()});
      !ok) {
    return ok.error();
  }
  shared_ = records;
  return records;
}

void Sampler::started() {
  if (!prepared_) return;
  OfStep& step = steps_[now_];
  tokens_ = prepared_->params.tokens;
  const Pending& pending = prepared_->pending;
  step.used = pending.at + Layout(std::ssize(pending.out), pending.top).bytes;
  step.pending.push_back(std::move(prepared_->pending));
  prepared_.reset();
}

Result<void> Sampler::make_room(OfStep& step, std::int64_t bytes) {
  if (step.used + bytes <= step.bytes) return {};
  LATHE_CHECK(step.pending.empty(), "results of one call and the next wait");
  const std::int64_t size = std::max<std::int64_t>(2 * bytes, 64 << 10);
  auto larger = allocate_pinned_bytes(size);
  if (!larger) return larger.error();
  step.results = std::move(*larger);
  step.bytes = size;
  return {};
}

void Sampler::finish(OfStep& step) {
  for (const Pending& p : step.pending) {
    const Layout layout(std::ssize(p.out), p.top);
    const std::byte* at = step.results.get() + p.at;
    const auto* logprobs = reinterpret_cast<const double*>(at + layout.logprobs);
    const auto* top_logprobs = reinterpret_cast<const double*>(at + layout.top_logprobs);
    const auto* tokens = reinterpret_cast<const std::int32_t*>(at + layout.tokens);
    const auto* top_tokens = reinterpret_cast<const std::int32_t*>(at + layout.top_tokens);
    for (std::size_t i = 0; i < p.out.size(); ++i) {
      p.out[i].reset();
      if (tokens[i] >= 0) p.out[i].emplace().token = tokens[i];
      if (p.wanted.empty() || p.wanted[i].likeliest < 0) continue;
      const auto& [likeliest, asked] = p.wanted[i];
      if (p.out[i]) {
        SampledToken& token = *p.out[i];
        token.logprob = logprobs[i];
        for (std::int32_t n = 0; n < likeliest; ++n) {
          token.top.push_back({top_tokens[n], top_logprobs[n]});
        }
        for (std::size_t n = 0; n < asked.size(); ++n) {
          token.asked.push_back({asked[n], top_logprobs[static_cast<std::size_t>(likeliest) + n]});
        }
      }
      const std::int64_t entries = likeliest + std::ssize(asked);
      top_tokens += entries;
      top_logprobs += entries;
    }
  }
  step.drop();
}

}  // namespace lathe::cuda
