#include "tools/terminal/answer.h"

#include <fmt/format.h>

#include <memory>

namespace lathe {

Result<std::size_t> AnswerSet::add(Request request, const std::vector<std::string>& stops,
                                   std::vector<std::pair<std::int32_t, std::string>> marks) {
  auto matcher = StopStrings::create(stops);
  if (!matcher) return matcher.error();
  const std::int64_t min_tokens = request.sampling.min_tokens;
  const auto id = runtime_->engine().submit(std::move(request));
  if (!id) return id.error();
  const std::size_t index = answers_.size();
  answers_.emplace_back();
  Detokenizer detokenizer = tokenizer_ != nullptr
                                ? tokenizer_->detokenizer(/*skip_special_tokens=*/true)
                                : Detokenizer(std::make_shared<const TokenTexts>(), true);
  streams_.emplace_back(std::move(detokenizer), std::move(*matcher), min_tokens);
  marks_.push_back(std::move(marks));
  ids_.push_back(*id);
  index_of_[id->value] = index;
  ++open_;
  return index;
}

// The text that the token makes final.
std::string AnswerSet::text_of(std::size_t index, std::int32_t token) {
  for (const auto& [id, text] : marks_[index]) {
    if (id == token) return streams_[index].push_mark(text);
  }
  return streams_[index].push(token);
}

Result<void> AnswerSet::step(const std::function<void(std::size_t, const std::string&)>& on_text) {
  const auto start = std::chrono::steady_clock::now();
  const auto report = runtime_->engine().step();
  if (!report) return report.error();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (report->prefill_rows > 0) {
    times_.prefill_seconds += seconds;
    times_.prefill_rows += report->prefill_rows;
  } else {
    times_.decode_seconds += seconds;
    times_.decode_rows += report->decode_rows + report->accepted;
  }

  const auto emit = [&](std::size_t i, const std::string& text) {
    answers_[i].text += text;
    if (on_text && !text.empty()) on_text(i, text);
  };
  for (const TokenEvent& e : report->tokens) {
    const auto at = index_of(e.request);
    if (!at) continue;
    const std::size_t i = *at;
    // Tokens of this step after a stop string do not belong to the answer.
    if (streams_[i].stopped()) continue;
    answers_[i].tokens.push_back(e.sampled.token);
    if (e.sampled.logprob) answers_[i].sampled.push_back(e.sampled);
    emit(i, text_of(i, e.sampled.token));
    // Cancelling an answer that ended in this step does nothing.
    if (streams_[i].stopped()) runtime_->engine().cancel(e.request, FinishReason::stop);
  }
  for (const Finished& f : report->finished) {
    const auto at = index_of(f.request);
    if (!at) continue;
    const std::size_t i = *at;
    emit(i, streams_[i].finish());
    answers_[i].finished = f;
    answers_[i].finished.answer_tokens = std::ssize(answers_[i].tokens);
    if (streams_[i].stopped()) {  // whatever the engine saw after it
      answers_[i].finished.reason = FinishReason::stop;
      answers_[i].finished.error.reset();
    }
    answers_[i].ended = true;
    --open_;
    times_.prompt_tokens += f.prompt_tokens;
    times_.cached_tokens += f.cached_tokens;
    times_.answer_tokens += answers_[i].finished.answer_tokens;
  }
  return {};
}

void AnswerSet::cancel(std::size_t index) { runtime_->engine().cancel(ids_[index]); }

std::string describe(const AnswerTimes& t) {
  const auto rate = [](std::int64_t n, double seconds) {
    return seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
  };
  return fmt::format(
      "prefill  {:7} tokens  {:9.1f} tokens/s  ({} cached)\n"
      "decode   {:7} tokens  {:9.1f} tokens/s\n",
      t.prefill_rows, rate(t.prefill_rows, t.prefill_seconds), t.cached_tokens, t.decode_rows,
      rate(t.decode_rows, t.decode_seconds));
}

std::string describe_drafts(const Runtime& runtime) {
  if (runtime.draft().kind == DraftKind::none) return {};
  return "drafts    " + describe(runtime.engine().stats().drafts) + "\n";
}

}  // namespace lathe
