#include "server/service/service.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <random>

#include "base/print.h"
#include "base/thread_name.h"
#include "engine/runner/rank_group.h"
#include "server/service/protocol.h"
#include "server/service/request_log.h"

namespace lathe {
namespace {

// Events handled in one batch, about a millisecond of work; other requests are served in between.
constexpr std::size_t kEventsInOneGo = 128;
constexpr std::int64_t kStepsPerLine = 40;  // steps per log line

// Whether logs, pages and headers may show it as it is.
bool is_safe(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("-_.:/").find(c) != std::string_view::npos;
}

// Echoes a client's id if its characters are safe.
std::string request_id(const HttpRequest& request) {
  const std::string* id = request.header("x-request-id");
  const bool fits = id != nullptr && !id->empty() && id->size() <= 128 &&
                    std::all_of(id->begin(), id->end(), is_safe);
  return fits ? *id : random_hex(16);
}

// The ignored fields' names for X-Lathe-Ignored.
std::string ignored_header(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < std::min<std::size_t>(8, names.size()); ++i) {
    if (i > 0) out += ',';
    for (char c : names[i].substr(0, 160)) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '[' ||
                         c == ']' || c == '$';
      out += plain ? c : '?';
    }
  }
  return out;
}

// The open routes that say how the server is.
bool asks_for_health(std::string_view request) {
  for (const std::string_view method : {"GET /", "HEAD /"}) {
    if (!request.starts_with(method)) continue;
    request.remove_prefix(method.size());
    const std::string_view path = request.substr(0, request.find_first_of(" ?"));
    return path == "health" || path == "ping" || path == "ready";
  }
  return false;
}

ApiError unavailable(std::string_view code, std::string message) {
  return {503, code, std::move(message), ""};
}

ApiError no_memory() { return {500, "engine_error", "the server is out of memory", ""}; }

// An exception while an answer is written ends that answer alone.
ApiError unwritten(const std::exception& e) {
  if (dynamic_cast<const std::bad_alloc*>(&e) != nullptr) return no_memory();
  return {500, "engine_error", fmt::format("the answer could not be written: {}", e.what()), ""};
}

}  // namespace

Service::Service(const ServerOptions& options, std::unique_ptr<HttpServer> http,
                 const Tokenizer& tokenizer, const ChatTemplateFile* chat, Routes routes)
    : options_(options),
      http_(std::move(http)),
      tokenizer_(tokenizer),
      chat_(chat),
      routes_(routes),
      limits_(options.requests_per_minute, options.tokens_per_minute),
      salt_seed_(std::random_device()() * (std::uint64_t{1} << 32) + std::random_device()()),
      created_(std::time(nullptr)),
      workers_(std::make_unique<Workers>(options.worker_threads)) {
  access_.api_keys = options.api_keys;
  access_.admin_key = options.admin_key;
  access_.origins = options.cors_origins;
  access_.hosts = options.allowed_hosts;
  access_.loopback = is_loopback(options.host);
}

Service::~Service() = default;

void Service::run() {
  name_thread("lathe-http");
  HttpHandler handler;
  handler.request = [this](HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
    handle(std::move(request), std::move(answer));
  };
  handler.reads_body = [this](const HttpRequest& request) {
    return routes_.reads_body(*this, request);
  };
  handler.refused = [this](int status, std::string_view code) {
    ++metrics_.refused[fmt::format("code=\"{}\"", code)];
    ++metrics_.http_responses[fmt::format("route=\"other\",status=\"{}\"", status)];
  };
  handler.error = [this](std::string_view path, int status, std::string_view code,
                         std::string message) {
    const ApiError error{status, code, std::move(message), ""};
    const std::string id = random_hex(16);
    HttpResponse response = error.response();
    if (const auto body = routes_.error_body(path)) response.body = body(error, id);
    response.headers.push_back({"X-Request-Id", id});
    return response;
  };
  handler.tick = [this] { tick(); };
  handler.spares = asks_for_health;
  http_->run(std::move(handler), [this](int number) { on_signal(number); });
  // What outlasts --shutdown-timeout by more than a second, such as a long step, is left as it is.
  const bool steps = engine_ != nullptr && engine_->stuck_for() > std::chrono::seconds(1);
  if (state_ == ServiceState::draining && (steps || !preparing_.empty())) leave_at_once();
  workers_.reset();
  engine_.reset();
}

void Service::set_progress(std::int64_t done, std::int64_t total) {
  percent_.store(total > 0 ? done * 100 / total : 0, std::memory_order_relaxed);
}

void Service::serve(std::shared_ptr<const ServedModel> model, Engine& engine) {
  http_->post([this, model = std::move(model), &engine] {
    if (ending_) return;
    model_ = model;
    stats_ = engine.stats();
    metrics_.total_tokens = model_->cache_tokens;
    metrics_.page_size = model_->page_size;
    metrics_.pages = stats_.total_pages;
    metrics_.context_length = model_->capacity;
    metrics_.plan_labels = model_->plan_labels;
    engine_ = std::make_unique<EngineThread>(engine, [this](EngineNews& news) {
      bool first = false;
      {
        const std::lock_guard lock(mailbox_mutex_);
        first = mailbox_.empty();
        mailbox_.push_back(std::move(news));
        if (!spare_.empty()) {
          news = std::move(spare_.back());
          spare_.pop_back();
        }
      }
      if (first) http_->post([this] { take_news(); });
    });
    state_ = ServiceState::ready;
  });
}

void Service::end(int exit_code) {
  if (ending_) return;
  ending_ = true;
  exit_code_ = exit_code;
  http_->stop();
}

std::string_view Service::health() const {
  if (state_ != ServiceState::ready) return name(state_);
  const auto limit = std::chrono::seconds(options_.watchdog_timeout);
  return engine_->stuck_for() > limit ? "stuck" : "ok";
}

bool Service::takes_requests() const {
  return state_ == ServiceState::ready && waiting_choices() < options_.max_queued_requests;
}

void Service::handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer) {
  auto reply = std::make_shared<Reply>(std::move(answer), request_id(request), metrics_);
  if (options_.access_log) {
    reply->on_status([this, method = request.method, path = request.path, id = reply->request_id(),
                      start = Clock::now()](int status) {
      const std::chrono::duration<double> took = Clock::now() - start;
      log_response(options_, method, path, id, status, took.count());
    });
  }
  routes_.dispatch(*this, std::move(request), std::move(reply));
}

void Service::work(std::shared_ptr<Reply> reply,
                   std::function<std::function<void()>(const StopFlag& stop)> job, int seconds) {
  const auto stop = std::make_shared<StopFlag>(false);
  if (seconds == 0) seconds = options_.request_timeout;
  const std::uint64_t id = ++last_job_;
  preparing_[id] = {reply, stop, Clock::now(), seconds};
  reply->on_gone([this, id](ClientEnd) {
    if (const auto at = preparing_.find(id); at != preparing_.end()) {
      if (!at->second.stop->exchange(true)) ++metrics_.aborted["why=\"client\""];
    }
  });
  workers_->add([this, id, stop, reply = std::move(reply), job = std::move(job)]() mutable {
    std::function<void()> then;
    try {
      if (!stop->load(std::memory_order_relaxed)) then = job(*stop);
    } catch (const std::exception& e) {  // out of memory, above all: fails this request alone
      then = [reply, what = std::string(e.what())] {
        reply->error({500, "engine_error", "the request could not be read: " + what, ""});
      };
    }
    // Return the reply to the thread that it belongs to.
    http_->post([this, id, stop, then = std::move(then), reply = std::move(reply)] {
      preparing_.erase(id);
      const bool over = stop->load(std::memory_order_relaxed);
      if (!over && reply->gone()) {
        ++metrics_.aborted["why=\"client\""];
      } else if (!over && then) {
        then();
      }
      if (state_ == ServiceState::draining) stop_if_drained();
    });
  });
}

// Answers at once. The worker ends the job as soon as it sees the flag.
void Service::cut_off(Preparing& job, const ApiError& error) {
  if (job.stop->exchange(true)) return;
  job.reply->error(error);
}

ApiError Service::queue_full(std::int64_t choices) const {
  return unavailable("queue_full",
                     fmt::format("answers: wanted at most {} waiting, got {} and {} more; retry "
                                 "later, or --max-queued-requests",
                                 options_.max_queued_requests, waiting_choices(), choices));
}

std::optional<ApiError> Service::refuse_new() const {
  if (state_ == ServiceState::draining) {
    return unavailable("draining", "the server is shutting down; retry with another");
  }
  if (state_ == ServiceState::failed) {
    return unavailable("engine_stuck", "the engine has failed; the log says why");
  }
  if (waiting_choices() >= options_.max_queued_requests) {
    return queue_full(1);
  }
  if (options_.max_queued_tokens > 0 && queued_tokens_ >= options_.max_queued_tokens) {
    return unavailable(
        "queue_full", fmt::format("prompts: wanted at most {} tokens waiting, got {}; retry later, "
                                  "or --max-queued-tokens",
                                  options_.max_queued_tokens, queued_tokens_));
  }
  if (health() == "stuck") return unavailable("engine_stuck", "the engine makes no progress");
  return std::nullopt;
}

void Service::generate(ApiRoute route, std::string body, std::shared_ptr<Reply> reply,
                       int seconds) {
  if (const auto error = refuse_new()) {
    reply->error(*error);
    return;
  }
  if (seconds == 0) seconds = options_.request_timeout;
  const auto received = Clock::now();
  auto job = [this, route, body = std::move(body), reply, received, seconds,
              model = model_](const StopFlag& stop) -> std::function<void()> {
    auto prepared = std::make_shared<Result<PreparedRequest, ApiError>>(
        prepare(route, body, *model, options_, &stop));
    return [this, prepared, reply, received, seconds] {
      if (*prepared) {
        submit(std::move(**prepared), reply, received, seconds);
      } else {
        reply->error(prepared->error());
      }
    };
  };
  work(std::move(reply), std::move(job), seconds);
}

void Service::submit(PreparedRequest prepared, std::shared_ptr<Reply> reply,
                     Clock::time_point received, int seconds) {
  if (state_ != ServiceState::ready) {
    reply->error(*refuse_new());
    return;
  }
  const auto choices = std::ssize(prepared.prompts) * prepared.api.n;
  if (queued_ + choices > options_.max_queued_requests) {
    reply->error(queue_full(choices));
    return;
  }
  metrics_.tokenize_seconds.add(prepared.seconds);
  std::int64_t tokens = prepared.prompt_tokens;
  for (const SamplingParams& p : prepared.sampling)
    tokens += std::int64_t{prepared.api.n} * *p.max_tokens;
  const auto charged = limits_.take(reply->caller(), tokens, Clock::now());
  reply->add_headers(limits_.headers(reply->caller(), Clock::now()));
  if (!charged) {
    reply->error(charged.error());
    return;
  }
  report_ignored(prepared.api.ignored, *reply);
  prepared.cache_salt = cache_salt(prepared.api, reply->caller());
  prepared.client = reply->caller().client;
  AnswerHead head;
  head.id = std::string(id_prefix(prepared.api.route)) + random_hex(16);
  head.created = std::time(nullptr);
  head.model = options_.any_model && prepared.api.model ? *prepared.api.model : options_.names[0];
  head.fingerprint = model_->fingerprint;
  head.tokenizer = &tokenizer_;
  head.reasoning = {options_.reasoning_field != "reasoning",
                    options_.reasoning_field != "reasoning_content"};
  const std::uint64_t id = next_ticket_;
  next_ticket_ += static_cast<std::uint64_t>(choices);
  reply->on_gone([this, id](ClientEnd end) {
    cut_off(id, end == ClientEnd::slow ? "slow_client" : "client", {});
  });
  try {
    auto answer = std::make_unique<LiveAnswer>(std::move(prepared), std::move(head), reply,
                                               Ticket{id}, received, options_, metrics_);
    std::vector<Submission> submissions = answer->submissions();
    Live& live = live_[id];
    live.answer = std::move(answer);
    live.seconds = seconds;
    live.charged = *charged;
    for (std::uint64_t t = id; t < next_ticket_; ++t) answer_of_[t] = id;
    count_waiting(live, live.answer->waiting_choices(), live.answer->waiting_tokens());
    engine_->submit(std::move(submissions));
  } catch (const std::bad_alloc&) {
    const ApiError error = no_memory();
    if (live_.contains(id)) {
      cut_off(id, "memory", error);
    } else {
      limits_.give_back(reply->caller(), *charged);
      reply->error(error);
    }
  }
}

// The engine's salt of a request: 0 for those that share with all. The admin key is a key, too.
std::uint64_t Service::cache_salt(const ApiRequest& api, const Caller& caller) const {
  const std::uint64_t owner = options_.isolate_prefix_cache ? caller.client + 1 : 0;
  if (owner == 0 && api.cache_salt.empty()) return 0;
  const std::uint64_t salt =
      XXH3_64bits_withSeed(api.cache_salt.data(), api.cache_salt.size(), salt_seed_ + owner);
  return salt == 0 ? 1 : salt;
}

void Service::report_ignored(const std::vector<std::string>& names, Reply& reply) {
  metrics_.ignored_fields += std::ssize(names);
  if (!names.empty()) reply.add_headers({{"X-Lathe-Ignored", ignored_header(names)}});
}

void Service::count_waiting(Live& live, std::int64_t choices, std::int64_t tokens) {
  queued_ += choices - std::exchange(live.choices, choices);
  queued_tokens_ += tokens - std::exchange(live.tokens, tokens);
}

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
    Live& live = live_.at(owner->second);
    try {
      if (live.answer->take(event, now, step_seconds)) done.push_back(event.ticket);
    } catch (const std::exception& e) {
      cut_off(owner->second, "memory", unwritten(e));
      continue;
    }
    if (touched_.empty() || touched_.back() != owner->second) touched_.push_back(owner->second);
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

std::optional<ApiError> Service::abort(const std::string& rid, bool all, const Caller& caller) {
  if (!caller.admin && (all || !caller.key)) {
    return ApiError{
        401, "invalid_api_key",
        "Authorization: wanted the admin key to end the requests of others, got another; "
        "--admin-api-key",
        ""};
  }
  std::vector<Ticket> tickets;
  for (auto& [id, live] : live_) {
    if (!caller.admin && live.answer->reply().caller() != caller) continue;
    const std::vector<Ticket> named = all ? live.answer->tickets() : live.answer->tickets(rid);
    if (named.empty()) continue;
    ++metrics_.aborted["why=\"api\""];
    tickets.insert(tickets.end(), named.begin(), named.end());
  }
  // Their ends arrive as events, which finish the answers.
  if (!tickets.empty()) engine_->cancel(std::move(tickets), FinishReason::cancelled);
  return std::nullopt;
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

void Service::tick() {
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

std::string Service::metrics_page() {
  metrics_.connections = http_->connections();
  metrics_.lost_log_lines = lost_prints();
  metrics_.drafts = stats_.drafts;
  metrics_.key_reads = stats_.key_reads;
  if (model_ && model_->grammars) {
    metrics_.grammar_compiles = {{"result=\"ok\"", model_->grammars->compiled()},
                                 {"result=\"cached\"", model_->grammars->found()},
                                 {"result=\"refused\"", model_->grammars->refused()}};
  }
  // With no live requests the engine's last news may be out of date.
  const bool none = live_.empty();
  metrics_.running = none ? 0 : stats_.running;
  metrics_.queued = none ? 0 : stats_.waiting;
  metrics_.queued_tokens = queued_tokens_;
  metrics_.held_pages = none ? 0 : stats_.held_pages;
  metrics_.used_tokens =
      stats_.total_pages > 0 ? metrics_.held_pages * metrics_.total_tokens / stats_.total_pages : 0;
  metrics_.open_streams = 0;
  for (const auto& [id, live] : live_) metrics_.open_streams += live.answer->streams() ? 1 : 0;
  metrics_.generation_rate = none ? 0 : rate_;
  {
    const std::lock_guard lock(mailbox_mutex_);
    metrics_.mailbox_steps = std::ssize(mailbox_);
  }
  metrics_.heartbeat_age =
      engine_ ? std::chrono::duration<double>(engine_->stuck_for()).count() : 0;
  return metrics_text(metrics_,
                      {options_.sglang_metrics, options_.vllm_metrics, options_.names[0]});
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
