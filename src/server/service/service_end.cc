// Service: time limits, the end of the server, and flushes of its cache.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/print.h"
#include "server/service/service.h"
#include "server/service/service_errors.h"

namespace lathe {

void Service::end(int exit_code) {
  if (ending_) return;
  ending_ = true;
  exit_code_ = exit_code;
  http_->stop();
}

// Nothing that the process owns outlives it but the socket's file.
void Service::leave_at_once() {
  print_err("stopping  at once\n");
  http_->remove_file();
  std::fflush(nullptr);
  std::_Exit(exit_code_);
}

void Service::on_signal(int) {
  if (state_ == ServiceState::loading) {
    leave_at_once();  // loading cannot be interrupted
  }
  if (state_ == ServiceState::draining) leave_at_once();
  print_err(fmt::format("stopping  {} requests, at most {} s; a second signal stops at once\n",
                        live_.size(), options_.shutdown_timeout));
  state_ = ServiceState::draining;
  drain_until_ = Clock::now() + std::chrono::seconds(options_.shutdown_timeout);
  http_->close_listener();
  const ApiError error = unavailable("draining", "the server is shutting down; retry with another");
  for (auto& [id, job] : preparing_) cut_off(job, error);
  std::vector<std::uint64_t> waiting;
  for (const auto& [id, live] : live_) {
    if (!live.answer->started()) waiting.push_back(id);
  }
  for (std::uint64_t id : waiting) cut_off(id, "shutdown", error);
  stop_if_drained();
}

void Service::stop_if_drained() {
  if (idle()) end(0);
}

void Service::count_failure(std::string_view what) {
  ++metrics_.connection_failures;
  if (std::exchange(failure_logged_, true)) return;
  print_err(fmt::format(
      "lathe: an exception ended a connection: {}; lathe_connection_failures_total counts them\n",
      shown_text(what)));
}

void Service::tick() {
  failure_logged_ = false;
  const auto now = Clock::now();
  time_out(now);
  rate_ = static_cast<double>(metrics_.generation_tokens - rate_tokens_);
  rate_tokens_ = metrics_.generation_tokens;
  if (!flushes_.empty()) try_flushes(Clock::now());
  if (state_ != ServiceState::draining || now < drain_until_) return;
  std::vector<std::uint64_t> open;
  for (const auto& [id, live] : live_) open.push_back(id);
  for (std::uint64_t id : open) {
    cut_off(id, "shutdown", unavailable("draining", "the server is shutting down"));
  }
  end(0);
}

void Service::time_out(Clock::time_point now) {
  struct Late {
    std::uint64_t id;
    ApiError error;
  };
  const auto since = [now](Clock::time_point from) {
    return std::chrono::duration<double>(now - from).count();
  };
  const auto too_long = [](int seconds) {
    return unavailable("request_timeout",
                       fmt::format("the request took more than {} s; --request-timeout", seconds));
  };
  for (auto& [id, job] : preparing_) {
    if (job.seconds > 0 && since(job.received) >= job.seconds) cut_off(job, too_long(job.seconds));
  }
  std::vector<Late> late;
  const bool stuck = state_ == ServiceState::ready && health() == "stuck";
  for (auto& [id, live] : live_) {
    const double waited = since(live.answer->received());
    if (stuck) {
      late.push_back({id, unavailable("engine_stuck", "the engine makes no progress")});
    } else if (live.seconds > 0 && waited >= live.seconds) {
      late.push_back({id, too_long(live.seconds)});
    } else if (options_.queue_timeout > 0 && !live.answer->started() &&
               waited >= options_.queue_timeout) {
      late.push_back(
          {id, unavailable("queue_timeout", fmt::format("the request waited more than {} s; "
                                                        "--queue-timeout",
                                                        options_.queue_timeout))});
    } else if (live.answer->streams() && waited >= options_.http.sse_keep_alive) {
      live.answer->keep_alive();
    }
  }
  for (const Late& l : late) cut_off(l.id, "timeout", l.error);
}

// Answers at once. The worker ends the job as soon as it sees the flag.
void Service::cut_off(Preparing& job, const ApiError& error) {
  if (job.stop->exchange(true)) return;
  job.reply->error(error);
}

void Service::flush_cache(double timeout, std::shared_ptr<Reply> reply) {
  const auto wait =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout));
  flushes_.push_back({std::move(reply), Clock::now() + wait});
  try_flushes(Clock::now());
}

void Service::try_flushes(Clock::time_point now) {
  std::vector<Flush> waiting = std::move(flushes_);
  flushes_.clear();
  for (Flush& flush : waiting) {
    if (idle()) {
      // Requests may have arrived meanwhile; then the engine keeps its cache.
      engine_->flush_prefix_cache([this, reply = flush.reply](EngineStats) {
        http_->post([reply] { reply->text("Cache flushed.\n"); });
      });
    } else if (now >= flush.until) {
      flush.reply->error(
          {400, "invalid_value",
           fmt::format("the cache is in use: {} running, {} waiting; ?timeout=S waits",
                       stats_.running, stats_.waiting + std::ssize(preparing_)),
           ""});
    } else {
      flushes_.push_back(std::move(flush));
    }
  }
}

}  // namespace lathe
