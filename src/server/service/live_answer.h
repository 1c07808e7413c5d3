// LiveAnswer: a request in progress, from the engine's tokens to bytes for the client. Used in the
// thread that serves HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "engine/request/text_stream.h"
#include "server/metrics/metrics.h"
#include "server/openai/answer.h"
#include "server/service/call_ids.h"
#include "server/service/prepare.h"
#include "server/service/reply.h"

namespace lathe {

class LiveAnswer {
 public:
  using Clock = std::chrono::steady_clock;

  /// Choice i of prompt p has ticket first + p * n + i. `model`, `options` and `metrics` outlive
  /// it.
  LiveAnswer(PreparedRequest request, AnswerHead head, std::shared_ptr<Reply> reply, Ticket first,
             Clock::time_point received, const ServerOptions& options, Metrics& metrics);
  LiveAnswer(const LiveAnswer&) = delete;
  LiveAnswer& operator=(const LiveAnswer&) = delete;

  /// The engine's requests, one per choice.
  std::vector<Submission> submissions() const;

  /// Handles an event of one of its tickets. `step_seconds`: duration of the step that made it.
  /// Returns true if the choice is complete and the engine should end that request.
  bool take(const TicketEvent& event, Clock::time_point now, double step_seconds);
  /// Sends the output of the events; called last in a step.
  void flush();
  /// Ends with an error: as the answer, or as the stream's last event.
  void fail(const ApiError& error);
  /// Ends without sending anything more, such as when the client has gone.
  void drop() { ended_ = true; }

  bool ended() const { return ended_; }
  /// Choices without a token that have not ended, and the tokens of the prompts that wait with
  /// them: the other choices of a prompt wait for its first one.
  std::int64_t waiting_choices() const { return waiting_; }
  std::int64_t waiting_tokens() const { return waiting_tokens_; }
  bool started() const { return started_; }
  bool streams() const { return request_.api.stream; }
  /// Starts the stream if its first event is late, so that proxies see traffic.
  void keep_alive();

  /// Tickets that have not ended: all, or those of the prompts that `rid` names. The answer's own
  /// id and a single rid name all prompts.
  std::vector<Ticket> tickets() const;
  std::vector<Ticket> tickets(const std::string& rid) const;
  std::size_t choices() const { return choices_.size(); }
  /// Streams keep their texts at --log-requests 3 only.
  const std::vector<Choice>& all_choices() const { return choices_; }
  std::int64_t prompt_tokens() const { return request_.prompt_tokens; }
  std::int64_t completion_tokens() const;
  std::int64_t cached_tokens() const;
  Clock::time_point received() const { return received_; }
  const RequestTimes& times() const { return times_; }
  const AnswerHead& head() const { return head_; }
  const ApiRequest& api() const { return request_.api; }
  /// The first prompt's.
  const SamplingParams& sampling() const { return request_.sampling[0]; }
  Reply& reply() { return *reply_; }
  std::string_view finish() const;

 private:
  struct Part {
    TextStream text;
    AnswerParts parts;
    TextParts pending = {};  // not yet in an event; so are calls and tokens
    std::vector<AnswerCall> calls = {};
    std::set<std::string> call_ids = {};  // of all calls
    std::size_t calls_before = 0;         // calls already in events
    std::vector<SampledToken> tokens = {};
    bool waits = true;    // has no token
    bool scored = false;  // of a prompt's first choice: the prompt's log-probabilities are there
    bool opened = false;
    bool any_part = false;
    std::int64_t tokens_since = 0;  // since the last event
    std::int32_t last_id = 0;
    Clock::time_point last_token = {};
  };
  void leave_queue(std::size_t i);
  void take_token(std::size_t i, const TicketEvent& event, Clock::time_point now);
  void finish_choice(std::size_t i, const Finished& finished);
  std::string text_of(std::size_t i, std::int32_t token);
  void add_text(std::size_t i, const std::string& text);
  void name_calls(std::size_t i);
  void emit(std::size_t i);
  void open_up_to(std::size_t i);
  std::size_t scorer_of(std::size_t i) const {
    const auto n = static_cast<std::size_t>(request_.api.n);
    return i / n * n;
  }
  bool awaits_scores(std::size_t i) const;
  void take_scores(std::size_t i);
  void end_choice(std::size_t i, ChoiceEnd end);
  double since_received(Clock::time_point now) const {
    return std::chrono::duration<double>(now - received_).count();
  }

  PreparedRequest request_;
  AnswerHead head_;
  std::shared_ptr<Reply> reply_;
  Ticket first_;
  Clock::time_point received_;
  const ServerOptions& options_;
  Metrics& metrics_;
  std::unique_ptr<AnswerFormat> format_;
  // What is kept of each token; asked once, as a call for each would cost.
  bool keeps_tokens_ = false;
  bool keeps_all_ = false;
  std::vector<Choice> choices_;
  std::vector<Part> parts_;  // [choices]
  CallIds call_ids_;
  std::string out_;  // events to send
  RequestTimes times_;
  std::size_t open_ = 0;  // choices that have not ended
  std::int64_t waiting_ = 0, waiting_tokens_ = 0;
  bool started_ = false;
  bool first_token_ = false;
  bool ended_ = false;
};

}  // namespace lathe
