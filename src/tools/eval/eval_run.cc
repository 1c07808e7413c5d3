#include "tools/eval/eval_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "io/template/chat_prompt.h"
#include "tools/terminal/answer.h"

namespace lathe {
namespace {

constexpr std::int32_t kSlackTokens = 8;

SamplingParams greedy(std::int32_t limit) {
  SamplingParams p;
  p.temperature = 0;
  p.max_tokens = limit;
  return p;
}

}  // namespace

Result<EncodedTask> encode_task(EvalTask task, const std::string& model_directory,
                                const Tokenizer& tokenizer) {
  const auto chat = load_chat_template(model_directory);
  if (!chat) return chat.error();
  EncodedTask out;
  for (const EvalItem& item : task.items) {
    auto tokens = encode_chat({{{"role", "user"}, {"content", item.prompt}}}, *chat, tokenizer);
    if (!tokens) return tokens.error();
    out.prompts.push_back(std::move(*tokens));
    const auto response = tokenizer.encode(item.response);
    if (!response) return response.error();
    out.limits.push_back(static_cast<std::int32_t>(response->size()) + kSlackTokens);
  }
  out.task = std::move(task);
  return out;
}

std::int64_t TaskRun::right() const { return std::count(marks.begin(), marks.end(), Mark::right); }

std::int64_t TaskRun::invalid() const {
  return std::count(marks.begin(), marks.end(), Mark::invalid);
}

std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> TaskRun::groups(
    const EvalTask& task) const {
  std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> out;
  for (std::size_t i = 0; i < marks.size(); ++i) {
    auto& [right, items] = out[task.items[i].group];
    right += marks[i] == Mark::right;
    ++items;
  }
  return out;
}

Result<std::unique_ptr<Evaluator>, StartError> Evaluator::create(RuntimeOptions options,
                                                                 const Tokenizer& tokenizer) {
  std::unique_ptr<Evaluator> out(new Evaluator(tokenizer));
  options.engine.on_logits = [e = out.get()](RequestId id, std::span<const float> logits) {
    if (e->on_logits_) e->on_logits_(id, logits);
  };
  auto runtime = Runtime::create(options);
  if (!runtime) return runtime.error();
  out->runtime_ = std::move(*runtime);
  return out;
}

Result<TaskRun> Evaluator::run(const EncodedTask& encoded, std::size_t traced,
                               const std::function<void(std::size_t, std::int64_t)>& on_progress) {
  const std::vector<EvalItem>& items = encoded.task.items;
  AnswerSet answers(*runtime_, *tokenizer_);
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto added = answers.add({encoded.prompts[i], greedy(encoded.limits[i])}, {});
    if (!added) {
      Error e = added.error();
      e.field = fmt::format("{} item {}: {}", name(encoded.task.kind), i, e.field);
      return e;
    }
  }
  TaskRun out;
  out.logits.resize(std::min(traced, items.size()));
  on_logits_ = [&](RequestId id, std::span<const float> logits) {
    const auto i = answers.index_of(id);
    if (!i || *i >= out.logits.size()) return;
    out.logits[*i].insert(out.logits[*i].end(), logits.begin(), logits.end());
  };

  const auto mark = [&](std::size_t i) {
    return mark_answer(encoded.task.kind, items[i], answers.answer(i).text);
  };
  std::vector<bool> counted(items.size());
  std::size_t ended = 0;
  std::int64_t right = 0;
  const DraftStats before = runtime_->engine().stats().drafts;
  const auto start = std::chrono::steady_clock::now();
  while (!answers.done()) {
    if (const auto ok = answers.step({}); !ok) {
      on_logits_ = nullptr;
      return ok.error();
    }
    if (!on_progress) continue;
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (counted[i] || !answers.answer(i).ended) continue;
      counted[i] = true;
      ++ended;
      right += mark(i) == Mark::right;
    }
    on_progress(ended, right);
  }
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  on_logits_ = nullptr;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Answer& a = answers.answer(i);
    if (a.finished.error) return *a.finished.error;
    out.answers.push_back(a.tokens);
    out.texts.push_back(a.text);
    out.marks.push_back(mark(i));
  }
  out.prompt_tokens = answers.times().prompt_tokens;
  out.cached_tokens = answers.times().cached_tokens;
  out.answer_tokens = answers.times().answer_tokens;
  out.drafts = runtime_->engine().stats().drafts.since(before);
  return out;
}

Agreement compare_runs(const TaskRun& reference, const TaskRun& other, std::int32_t vocab) {
  Agreement out;
  for (std::size_t i = 0; i < reference.answers.size(); ++i) {
    const auto& a = reference.answers[i];
    const auto& b = other.answers[i];
    const std::size_t both = std::min(a.size(), b.size());
    out.tokens += std::ssize(a);
    for (std::size_t t = 0; t < both; ++t) out.equal += a[t] == b[t];
    if (i >= reference.logits.size() || i >= other.logits.size()) continue;
    // Token t was sampled from logits t, which depend on the tokens before it.
    const auto alike = static_cast<std::size_t>(
        std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(both), b.begin()).first -
        a.begin());
    const std::size_t n = std::min(alike + 1, both) * static_cast<std::size_t>(vocab);
    for (std::size_t k = 0; k < n; ++k) {
      out.difference += std::abs(double{reference.logits[i][k]} - double{other.logits[i][k]});
    }
    out.differences += static_cast<std::int64_t>(n);
  }
  return out;
}

}  // namespace lathe
