#include "tools/bench/model/engine_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "tools/bench/median.h"

namespace lathe {

Result<double> EngineBench::prefill(std::int64_t tokens, std::int64_t depth, std::int64_t batch) {
  auto prompts = make_prompts(depth, batch);
  if (const auto ok = warm(prompts); !ok) return ok.error();
  for (auto& p : prompts) append(p, tokens);
  if (const auto ids = submit(prompts, 1); !ids) return ids.error();
  std::int64_t rows = 0;
  double seconds = 0;
  while (!runtime_.engine().idle()) {
    const auto step = timed_step(seconds);
    if (!step) return step.error();
    rows += step->prefill_rows;
  }
  return static_cast<double>(rows) / seconds;
}

Result<EngineBench::Decoded> EngineBench::decode(std::int64_t tokens, std::int64_t depth,
                                                 std::int64_t batch, const Decoded* known) {
  if (oracle_ != nullptr) {
    random_.seed(1);
    oracle_->turn(known != nullptr);
  }
  auto prompts = make_prompts(depth, batch);
  if (const auto ok = warm(prompts); !ok) return ok.error();
  for (auto& p : prompts) append(p, 1);
  const auto ids = submit(prompts, tokens + 1);
  if (!ids) return ids.error();
  for (std::size_t i = 0; known != nullptr && i < ids->size(); ++i) {
    oracle_->expect((*ids)[i], depth + 1, known->answers[i]);
  }
  Decoded out;
  out.answers.resize(ids->size());
  static_cast<void>(runtime_.backend().idle_seconds());
  const KeyReads before = runtime_.engine().stats().key_reads;
  while (!runtime_.engine().idle()) {
    double took = 0;
    const double waited = runtime_.engine().stats().waited_s;
    const auto step = timed_step(took);
    if (!step) return step.error();
    const double drafter = oracle_ != nullptr ? oracle_->take_seconds() : 0;
    for (const TokenEvent& t : step->tokens) {
      out.answers[static_cast<std::size_t>(t.request.value - ids->front().value)].push_back(
          t.sampled.token);
    }
    if (step->prefill_rows > 0 || step->decode_rows < batch) continue;
    out.made += std::ssize(step->tokens);
    out.seconds += took;
    out.steps.push_back(took);
    out.host.push_back(took - (runtime_.engine().stats().waited_s - waited));
    if (step->drafted > 0) out.drafter.push_back(drafter);
  }
  out.idle = runtime_.backend().idle_seconds();
  const KeyReads after = runtime_.engine().stats().key_reads;
  const auto attended = static_cast<double>(after.attended - before.attended);
  if (attended > 0) out.shared = static_cast<double>(after.shared - before.shared) / attended;
  return out;
}

Result<DraftGain> EngineBench::gain(std::int64_t tokens, std::int64_t depth, std::int64_t batch,
                                    double right, int repeats) {
  DraftGain out{fmt::format("tg{}", tokens), depth, batch, runtime_.plan().draft_tokens()};
  std::vector<double> plain, drafted, steps, wide, drafter;
  const auto add = [](std::vector<double>& to, const std::vector<double>& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  const DraftStats before = runtime_.engine().stats().drafts;
  for (int i = 0; i <= repeats; ++i) {
    const auto without = decode(tokens, depth, batch);
    if (!without) return without.error();
    const auto with = decode(tokens, depth, batch, &*without);
    if (!with) return with.error();
    const auto rows = decode(tokens, depth, batch * (1 + out.drafts));
    if (!rows) return rows.error();
    if (i == 0) continue;  // warms up
    plain.push_back(without->rate());
    drafted.push_back(with->rate());
    add(steps, without->steps);
    add(wide, rows->steps);
    add(drafter, with->drafter);
  }
  out.plain = median_or_zero(plain);
  out.drafted = median_or_zero(drafted);
  out.step = median_or_zero(steps);
  out.wide = median_or_zero(wide);
  out.drafter = median_or_zero(drafter);
  out.length = runtime_.engine().stats().drafts.since(before).acceptance_length();
  double all_right = 1;
  for (std::int64_t d = 0; d <= out.drafts; ++d, all_right *= right) out.expected += all_right;
  return out;
}

void EngineBench::append(std::vector<std::int32_t>& prompt, std::int64_t n) {
  std::uniform_int_distribution<std::int32_t> token(0, runtime_.config().vocab - 1);
  for (std::int64_t i = 0; i < n; ++i) prompt.push_back(token(random_));
}

std::vector<std::vector<std::int32_t>> EngineBench::make_prompts(std::int64_t depth,
                                                                 std::int64_t batch) {
  std::vector<std::int32_t> common;
  append(common, std::min(depth, shared_));
  std::vector<std::vector<std::int32_t>> prompts(static_cast<std::size_t>(batch), common);
  for (auto& p : prompts) append(p, depth - std::ssize(common));
  return prompts;
}

Result<std::vector<RequestId>> EngineBench::submit(
    const std::vector<std::vector<std::int32_t>>& prompts, std::int64_t answer) {
  SamplingParams params;
  params.temperature = 0;
  params.ignore_eos = true;
  params.max_tokens = static_cast<std::int32_t>(answer);
  std::vector<RequestId> ids;
  for (const auto& p : prompts) {
    const auto id = runtime_.engine().submit({p, params});
    if (!id) return id.error();
    ids.push_back(*id);
  }
  return ids;
}

// Prefills the prompts, so that their whole pages are in the prefix cache. What they share is
// prefilled first, once.
Result<void> EngineBench::warm(const std::vector<std::vector<std::int32_t>>& prompts) {
  runtime_.engine().clear_prefix_cache();
  if (prompts.front().empty()) return {};
  if (shared_ > 0) {
    if (const auto ok = run({prompts.front()}); !ok) return ok;
  }
  return run(prompts);
}

Result<void> EngineBench::run(const std::vector<std::vector<std::int32_t>>& prompts) {
  if (const auto ids = submit(prompts, 1); !ids) return ids.error();
  double seconds = 0;
  while (!runtime_.engine().idle()) {
    if (const auto step = timed_step(seconds); !step) return step.error();
  }
  return {};
}

Result<StepReport> EngineBench::timed_step(double& seconds) {
  const auto start = std::chrono::steady_clock::now();
  auto report = runtime_.engine().step();
  seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!report) return report;
  for (const Finished& f : report->finished) {
    if (f.error) return *f.error;
  }
  return report;
}

}  // namespace lathe
