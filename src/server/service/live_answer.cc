#include "server/service/live_answer.h"

#include <algorithm>
#include <utility>

#include "server/service/protocol.h"

namespace lathe {
namespace {

// A client with more unread bytes gets several steps in one event.
constexpr std::size_t kMergeBytes = 256 << 10;

TextStream text_stream(const Tokenizer& tokenizer, const AnswerParams& params) {
  auto stops = StopStrings::create(params.stop);
  LATHE_CHECK(stops.ok(), "stop strings were checked with the request's fields");
  return {tokenizer.detokenizer(params.skip_special_tokens), std::move(*stops),
          params.sampling.min_tokens};
}

}  // namespace

LiveAnswer::LiveAnswer(PreparedRequest request, AnswerHead head, std::shared_ptr<Reply> reply,
                       Ticket first, Clock::time_point received, const ServerOptions& options,
                       Metrics& metrics)
    : request_(std::move(request)),
      head_(std::move(head)),
      reply_(std::move(reply)),
      first_(first),
      received_(received),
      options_(options),
      metrics_(metrics),
      call_ids_(request_.markup.tools, std::move(request_.earlier_call_ids)) {
  head_.prompts = std::move(request_.prompts);
  for (AnswerPrompt& p : head_.prompts) {
    if (request_.score_from == 0) p.logprobs.push_back({p.tokens[0], std::nullopt, {}, {}});
  }
  format_ = make_format(request_.api, head_);
  keeps_tokens_ = format_->wants_tokens() || !request_.api.stream;
  keeps_all_ = format_->wants_all() || !request_.api.stream || options_.log_requests >= 3;
  const auto n = static_cast<std::size_t>(request_.api.n);
  for (std::size_t prompt = 0; prompt < head_.prompts.size(); ++prompt) {
    // Copies share the stop strings and the tools' schemas.
    const Part part{.text = text_stream(*head_.tokenizer, request_.api.params(prompt)),
                    .parts = AnswerParts(request_.markup)};
    for (std::size_t i = 0; i < n; ++i) {
      Choice c;
      c.index = static_cast<std::int32_t>(prompt * n + i);
      c.prompt = prompt;
      choices_.push_back(std::move(c));
      parts_.push_back(part);
    }
  }
  open_ = choices_.size();
  waiting_ = std::ssize(choices_);
  waiting_tokens_ = request_.prompt_tokens;
}

void LiveAnswer::leave_queue(std::size_t i) {
  if (!std::exchange(parts_[i].waits, false)) return;
  --waiting_;
  if (i % static_cast<std::size_t>(request_.api.n) == 0) {
    waiting_tokens_ -= head_.prompts[choices_[i].prompt].count;
  }
}

std::vector<Submission> LiveAnswer::submissions() const {
  std::vector<Submission> out;
  const auto n = static_cast<std::uint64_t>(request_.api.n);
  for (const Choice& c : choices_) {
    Submission s;
    const auto i = static_cast<std::uint64_t>(c.index);
    s.ticket = {first_.value + i};
    if (i % n != 0) s.sibling_of = {first_.value + i / n * n};
    s.request.prompt = head_.prompts[c.prompt].tokens;
    s.request.sampling = request_.sampling[c.prompt];
    s.request.only_prompt = request_.drops_answer(c.prompt);
    // Only a prompt's first choice scores the prompt; the others share the result.
    if (i % n == 0) s.request.prompt_logprobs_from = request_.score_from;
    s.request.cache_salt = request_.cache_salt;
    s.request.client = request_.client;
    s.request.priority = request_.api.priority;
    s.request.constraint = make_constraint(request_, c.prompt);
    if (auto& seed = s.request.sampling.seed) {
      seed = seed_of_choice(*seed, static_cast<std::int32_t>(i % n));
    }
    out.push_back(std::move(s));
  }
  return out;
}

bool LiveAnswer::take(const TicketEvent& event, Clock::time_point now, double step_seconds) {
  const std::size_t i = event.ticket.value - first_.value;
  if (ended_ || choices_[i].end) return false;
  choices_[i].seconds = since_received(now);
  if (event.started) {
    choices_[i].cached_tokens = event.started->cached_tokens;
    // Count a prompt's first choice alone: the others always find the prompt in the cache.
    if (i % static_cast<std::size_t>(request_.api.n) == 0) {
      metrics_.prompt_tokens += head_.prompts[choices_[i].prompt].count;
      metrics_.cached_tokens += event.started->cached_tokens;
      metrics_.prompt_lengths.add(static_cast<double>(head_.prompts[choices_[i].prompt].count));
    }
    if (!started_) {
      times_.started = std::max(0.0, since_received(now) - step_seconds);
      metrics_.queue_seconds.add(times_.started);
    }
    started_ = true;
  }
  if (event.refused) {
    fail({500, "engine_error", event.refused->message(), ""});
    return false;
  }
  if (event.token) take_token(i, event, now);
  if (choices_[i].end) return !event.finished;
  if (event.finished) finish_choice(i, *event.finished);
  return false;
}

void LiveAnswer::take_token(std::size_t i, const TicketEvent& event, Clock::time_point now) {
  Choice& choice = choices_[i];
  Part& part = parts_[i];
  if (request_.score_from && !event.prompt_logprobs.empty()) {
    head_.prompts[choice.prompt].logprobs.insert(head_.prompts[choice.prompt].logprobs.end(),
                                                 event.prompt_logprobs.begin(),
                                                 event.prompt_logprobs.end());
  }
  take_scores(i);
  if (request_.drops_answer(choice.prompt)) return;
  if (part.waits) leave_queue(i);
  if (!first_token_) {
    first_token_ = true;
    times_.first_token = since_received(now);
    metrics_.first_token_seconds.add(times_.first_token);
  }
  if (choice.completion_tokens > 0) {
    metrics_.between_tokens_seconds.add(
        std::chrono::duration<double>(now - part.last_token).count());
  }
  part.last_token = now;
  part.last_id = event.token->token;
  ++choice.completion_tokens;
  ++metrics_.generation_tokens;
  ++part.tokens_since;
  if (part.parts.reasons()) {
    ++choice.reasoning_tokens;
    ++metrics_.reasoning_tokens;
  }
  if (keeps_tokens_) part.tokens.push_back(*event.token);
  // A stop token is not part of the answer's text.
  const bool stop = event.finished && event.finished->reason == FinishReason::stop;
  const AnswerParams& params = request_.api.params(choice.prompt);
  if (!stop || params.keep_stop) add_text(i, text_of(i, event.token->token));
  if (!part.text.stopped()) {
    if (part.parts.complete() && !event.finished) {
      end_choice(i, {});
      return;
    }
    if (!event.finished) emit(i);
    return;
  }
  const std::string& text = params.stop[static_cast<std::size_t>(part.text.stop())];
  if (params.keep_stop) add_text(i, text);
  end_choice(i, {EndKind::stop, text, std::nullopt});
}

void LiveAnswer::finish_choice(std::size_t i, const Finished& finished) {
  Choice& choice = choices_[i];
  Part& part = parts_[i];
  choice.preemptions = finished.preemptions;
  metrics_.preemptions += finished.preemptions;
  if (finished.reason == FinishReason::error) {
    const bool constraint = finished.error && finished.error->code == ErrorCode::exhausted;
    fail({500, constraint ? "engine_error" : "not_finite",
          finished.error ? finished.error->message() : "the model failed", ""});
    return;
  }
  add_text(i, part.text.finish());
  ChoiceEnd end;
  if (part.text.stopped()) {
    const AnswerParams& params = request_.api.params(choice.prompt);
    end.text = params.stop[static_cast<std::size_t>(part.text.stop())];
    if (params.keep_stop) add_text(i, *end.text);
  } else if (finished.reason == FinishReason::cancelled) {
    end.kind = EndKind::abort;
  } else if (finished.reason == FinishReason::length || request_.drops_answer(choice.prompt)) {
    end.kind = EndKind::length;
  } else if (finished.reason == FinishReason::stop) {
    end.token = part.last_id;
  }
  end_choice(i, std::move(end));
}

// Returns the text that the token makes final.
std::string LiveAnswer::text_of(std::size_t i, std::int32_t token) {
  if (request_.api.skip_special_tokens || request_.markup.harmony) {
    for (const auto& [id, text] : request_.markup.tokens) {
      if (id == token) return parts_[i].text.push_mark(text);
    }
  }
  return parts_[i].text.push(token);
}

void LiveAnswer::add_text(std::size_t i, const std::string& text) {
  parts_[i].parts.push(text, parts_[i].pending);
  if (!parts_[i].pending.calls.empty()) name_calls(i);
}

void LiveAnswer::name_calls(std::size_t i) {
  Part& part = parts_[i];
  for (ToolCall& call : part.pending.calls) {
    std::string id = call_ids_.add(call, part.call_ids);
    part.calls.push_back({std::move(id), std::move(call)});
  }
  part.pending.calls.clear();
}

// Whether a stream's events of the choice must wait for the prompt's log-probabilities, which the
// first one has. Another choice, even of the same prompt, may have tokens before.
bool LiveAnswer::awaits_scores(std::size_t i) const {
  return request_.api.stream && request_.score_from && !parts_[scorer_of(i)].scored;
}

// A prompt's first choice has its first token or ends: choices of the prompt that have ended before
// are told.
void LiveAnswer::take_scores(std::size_t i) {
  if (i != scorer_of(i)) return;
  const bool waited = awaits_scores(i);
  parts_[i].scored = true;
  if (!waited) return;
  for (std::size_t k = i + 1; k < i + static_cast<std::size_t>(request_.api.n); ++k) {
    if (!choices_[k].end) continue;
    emit(k);
    format_->end(choices_[k], out_);
  }
}

void LiveAnswer::open_up_to(std::size_t i) {
  for (std::size_t j = 0; j <= i; ++j) {
    if (parts_[j].opened || awaits_scores(j)) continue;
    parts_[j].opened = true;
    format_->open(choices_[j], out_);
  }
}

// Turns pending parts into an event, unless there is nothing to send or the client is slow to read.
void LiveAnswer::emit(std::size_t i) {
  Choice& choice = choices_[i];
  Part& part = parts_[i];
  const bool ended = choice.end.has_value();
  const auto keep = [&] {
    if (!keeps_all_) return;
    choice.calls.insert(choice.calls.end(), part.calls.begin(), part.calls.end());
    choice.text += part.pending.content;
    choice.reasoning += part.pending.reasoning;
    for (const PartRun& run : part.pending.order) add_run(choice.order, run);
    choice.tokens.insert(choice.tokens.end(), part.tokens.begin(), part.tokens.end());
  };
  const auto told = [&] {
    part.pending.clear();
    part.tokens.clear();
    part.calls_before += part.calls.size();
    part.calls.clear();
  };
  if (!request_.api.stream) {
    keep();
    told();
    return;
  }
  if (awaits_scores(i)) return;
  if (!ended && part.any_part &&
      (part.tokens_since < options_.stream_interval || reply_->unsent() > kMergeBytes)) {
    // Formats that repeat everything need no pending parts; the others' next event has them.
    if (format_->wants_all()) {
      keep();
      told();
    }
    return;
  }
  keep();
  if (!part.opened) open_up_to(i);
  const bool tells = !part.pending.empty() || !part.calls.empty() ||
                     (format_->wants_tokens() && part.tokens_since > 0);
  // Formats that repeat everything need no separate last part.
  if (tells && !(ended && format_->wants_all())) {
    format_->part(choice,
                  {part.pending.content, part.pending.reasoning, part.calls, part.calls_before,
                   part.tokens, part.pending.order},
                  out_);
    part.any_part = true;
  }
  part.tokens_since = 0;
  told();
}

void LiveAnswer::end_choice(std::size_t i, ChoiceEnd end) {
  Choice& choice = choices_[i];
  // A stop string may cut a call anywhere, as a limit may.
  parts_[i].parts.finish(parts_[i].pending, end.kind == EndKind::stop && !end.text);
  name_calls(i);
  if (end.kind == EndKind::stop && parts_[i].parts.calls() > 0) end.kind = EndKind::tool_calls;
  choice.end = std::move(end);
  leave_queue(i);
  --open_;
  metrics_.answer_lengths.add(static_cast<double>(choice.completion_tokens));
  take_scores(i);
  if (awaits_scores(i)) return;
  emit(i);
  if (request_.api.stream) format_->end(choice, out_);
}

void LiveAnswer::flush() {
  if (ended_) return;
  if (open_ == 0) {
    times_.ended = since_received(Clock::now());
    if (!first_token_) times_.first_token = times_.ended;
  }
  if (!request_.api.stream) {
    if (open_ > 0) return;
    ended_ = true;
    reply_->json(format_->whole(choices_, times_));
    return;
  }
  if (open_ == 0) format_->close(choices_, times_, out_);
  // The status line goes out with the first token, which may have no text.
  if ((first_token_ || !out_.empty()) && !reply_->streaming()) reply_->begin_stream();
  if (!out_.empty()) {
    reply_->write(out_);
    out_.clear();
  }
  if (open_ > 0) return;
  ended_ = true;
  if (const std::string_view last = format_->last(); !last.empty()) reply_->write(last);
  reply_->end_stream();
}

void LiveAnswer::fail(const ApiError& error) {
  if (ended_) return;
  ended_ = true;
  if (!reply_->streaming()) {
    reply_->error(error);
    return;
  }
  format_->fail(error, out_);
  reply_->fail_stream(error, out_);
  if (const std::string_view last = format_->last(); !last.empty()) reply_->write(last);
  reply_->end_stream();
}

void LiveAnswer::keep_alive() {
  if (ended_ || reply_->streaming()) return;
  reply_->begin_stream();
  reply_->write("\n");
}

std::vector<Ticket> LiveAnswer::tickets() const { return tickets(head_.id); }

std::vector<Ticket> LiveAnswer::tickets(const std::string& rid) const {
  const auto& rids = request_.api.rids;
  const bool all = head_.id == rid || (rids.size() == 1 && rids[0] == rid);
  std::vector<Ticket> out;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    const bool named = all || (rids.size() > 1 && rids[choices_[i].prompt] == rid);
    if (named && !choices_[i].end) out.push_back({first_.value + i});
  }
  return out;
}

std::int64_t LiveAnswer::completion_tokens() const {
  std::int64_t out = 0;
  for (const Choice& c : choices_) out += c.completion_tokens;
  return out;
}

std::int64_t LiveAnswer::cached_tokens() const {
  std::int64_t out = 0;
  const auto n = static_cast<std::size_t>(request_.api.n);
  for (std::size_t i = 0; i < choices_.size(); i += n) out += choices_[i].cached_tokens;
  return out;
}

std::string_view LiveAnswer::finish() const {
  for (const Choice& c : choices_) {
    if (c.end && c.end->kind == EndKind::abort) return "abort";
  }
  for (const Choice& c : choices_) {
    if (c.end && c.end->kind == EndKind::length) return "length";
  }
  return ended_ && open_ == 0 ? "stop" : "error";
}

}  // namespace lathe
