// Service: the engine's news, which answers take, and their ends.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/print.h"
#include "engine/runner/rank_group.h"
#include "server/service/request_log.h"
#include "server/service/service.h"
#include "server/service/service_errors.h"

namespace lathe {
namespace {

// Events handled in one batch, about a millisecond of work; other requests are served in between.
constexpr std::size_t kEventsInOneGo = 128;
constexpr std::int64_t kStepsPerLine = 40;  // steps per log line

// An exception while an answer is written ends that answer alone.
ApiError unwritten(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) return no_memory();
  return {500, "engine_error", fmt::format("the answer could not be written: {}", e.what()), ""};
}

}  // namespace

void Service::take_news() {
  if (taken_steps_ == taken_.size()) {
    const std::lock_guard lock(mailbox_mutex_);
    std::swap(spare_, taken_);
    taken_.clear();
    std::swap(taken_, mailbox_);
    taken_steps_ = 0;
  }
  while (taken_steps_ < taken_.size()) {
    const EngineNews& news = taken_[taken_steps_];
    const std::span<const TicketEvent> left = std::span(news.events).subspan(taken_events_);
    const std::size_t n = std::min(left.size(), kEventsInOneGo);
    take_events(left.first(n), news.seconds);
    if (n < left.size()) {
      taken_events_ += n;
      http_->post([this] { take_news(); });
      return;
    }
    take_step(news);
    ++taken_steps_;
    // A call posted for later news may have been used up by these, so post another.
    if (std::exchange(taken_events_, 0) > 0) http_->post([this] { take_news(); });
  }
}

void Service::take_events(std::span<const TicketEvent> events, double step_seconds) {
  const auto now = Clock::now();
  touched_.clear();
  std::vector<Ticket> done;
  for (const TicketEvent& event : events) {
    const auto owner = answer_of_.find(event.ticket.value);
    if (owner == answer_of_.end()) continue;
    Live& live = *owner->second;
    const std::uint64_t id = live.id;
    try {
      if (live.answer->take(event, now, step_seconds)) done.push_back(event.ticket);
    } catch (const std::exception& e) {
      cut_off(id, "memory", unwritten(e));
      continue;
    }
    if (touched_.empty() || touched_.back() != id) touched_.push_back(id);
  }
  if (!done.empty()) engine_->cancel(std::move(done), FinishReason::stop);
  for (std::uint64_t id : touched_) {
    const auto at = live_.find(id);
    if (at == live_.end()) continue;
    LiveAnswer& answer = *at->second.answer;
    if (answer.waiting_choices() != at->second.choices) {
      count_waiting(at->second, answer.waiting_choices(), answer.waiting_tokens());
    }
    const std::size_t answers = live_.size();
    try {
      answer.flush();  // may find the client gone, which removes the answer
    } catch (const std::exception& e) {
      cut_off(id, "memory", unwritten(e));
    }
    if (live_.size() == answers && answer.ended()) {
      const std::vector<Ticket> open = answer.tickets();  // an answer that failed
      if (!open.empty()) engine_->cancel(open, FinishReason::cancelled);
      log_end(answer, answer.finish());
      remove(id);
    }
  }
}

void Service::take_step(const EngineNews& news) {
  stats_ = news.stats;
  if (news.prefill_rows > 0) metrics_.prefill_step_seconds.add(news.seconds);
  if (news.prefill_rows == 0 && news.decode_rows > 0)
    metrics_.decode_step_seconds.add(news.seconds);
  if (options_.log_requests > 0 && news.decode_rows > 0) log_step(news);
  if (news.failed) {
    state_ = ServiceState::failed;
    print_err(fmt::format("lathe: the engine has failed: two steps failed in a row: {}\n",
                          news.why->message()));
    if (!options_.no_exit_on_failure) end(model_->ranks > 1 ? kRanksFailed : 1);
  }
  if (!flushes_.empty()) try_flushes(Clock::now());
  if (state_ == ServiceState::draining) stop_if_drained();
}

void Service::count_waiting(Live& live, std::int64_t choices, std::int64_t tokens) {
  queued_ += choices - std::exchange(live.choices, choices);
  queued_tokens_ += tokens - std::exchange(live.tokens, tokens);
}

void Service::remove(std::uint64_t id) {
  const auto at = live_.find(id);
  if (at == live_.end()) return;
  count_waiting(at->second, 0, 0);
  LiveAnswer& ended = *at->second.answer;
  const std::int64_t used = ended.prompt_tokens() + ended.completion_tokens();
  limits_.give_back(ended.reply().caller(), std::max<std::int64_t>(0, at->second.charged - used));
  for (std::uint64_t t = id; t < id + at->second.answer->choices(); ++t) answer_of_.erase(t);
  // Defer the destruction: the answer's own calls may be on the stack.
  http_->post([held = std::shared_ptr<LiveAnswer>(std::move(at->second.answer))] {});
  live_.erase(at);
}

void Service::cut_off(std::uint64_t id, std::string_view why, const ApiError& error) {
  const auto at = live_.find(id);
  if (at == live_.end()) return;
  LiveAnswer& answer = *at->second.answer;
  if (engine_) engine_->cancel(answer.tickets(), FinishReason::cancelled);
  ++metrics_.aborted[fmt::format("why=\"{}\"", why)];
  if (answer.reply().gone()) {
    answer.drop();
  } else {
    answer.fail(error);
  }
  log_end(answer, why);
  remove(id);
}

void Service::log_end(LiveAnswer& answer, std::string_view finish) {
  const double seconds = std::chrono::duration<double>(Clock::now() - answer.received()).count();
  metrics_.request_seconds.add(seconds);
  const std::int64_t tokens = answer.completion_tokens();
  if (tokens > 1) {
    metrics_.seconds_per_token.add((seconds - answer.times().first_token) /
                                   static_cast<double>(tokens - 1));
  }
  ++metrics_.requests[fmt::format("route=\"{}\",finish=\"{}\"", name(answer.api().route), finish)];
  log_request(options_, answer, seconds, finish);
}

void Service::log_step(const EngineNews& news) {
  if (++decode_steps_ % kStepsPerLine == 0) log_decode(options_, news);
}

}  // namespace lathe
