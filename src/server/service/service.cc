#include "server/service/service.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <random>

#include "base/print.h"
#include "base/thread_name.h"
#include "server/openai/fields.h"
#include "server/service/protocol.h"
#include "server/service/request_log.h"
#include "server/service/service_errors.h"

namespace lathe {
namespace {

constexpr std::size_t kLongBody = 1 << 20;  // may take a worker seconds

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

// The ignored fields' names for X-Lathe-Ignored; "..." after the first eight stands for others.
std::string ignored_header(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(kMost, names.size()); ++i) {
    if (i > 0) out += ',';
    for (const char c : shown_path(names[i])) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-' || c == '[' ||
                         c == ']' || c == '$' || c == '"';
      out += plain ? c : '?';
    }
  }
  if (names.size() > kMost) out += ",...";
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
  handler.error = [this](const HttpRequest& seen, int status, std::string_view code,
                         std::string message) {
    const ApiError error{status, code, std::move(message), ""};
    const std::string id = random_hex(16);
    HttpResponse response = error.response();
    if (const auto body = routes_.error_body(seen.path)) response.body = body(error, id);
    for (HttpHeader& h : cors_headers(access_, seen)) response.headers.push_back(std::move(h));
    response.headers.push_back({"X-Request-Id", id});
    return response;
  };
  handler.failed = [this](std::string_view what) { count_failure(what); };
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

void Service::work(std::shared_ptr<Reply> reply, std::size_t bytes,
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
  const std::uint64_t client = reply->caller().client;
  workers_->add(
      client, bytes > kLongBody,
      [this, id, stop, reply = std::move(reply), job = std::move(job)]() mutable {
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

void Service::generate(ApiRoute route, std::string body, std::shared_ptr<Reply> reply) {
  start(route, std::move(body), std::move(reply), options_.request_timeout, /*charged=*/true);
}

void Service::probe(int seconds, std::shared_ptr<Reply> reply) {
  start(ApiRoute::completions, R"({"prompt": [0], "max_tokens": 1, "temperature": 0})",
        std::move(reply), seconds, /*charged=*/false);
}

void Service::start(ApiRoute route, std::string body, std::shared_ptr<Reply> reply, int seconds,
                    bool charged) {
  if (const auto error = refuse_new()) {
    reply->error(*error);
    return;
  }
  const auto received = Clock::now();
  const std::size_t bytes = body.size();
  auto job = [this, route, body = std::move(body), reply, received, seconds, charged,
              model = model_](const StopFlag& stop) -> std::function<void()> {
    auto prepared = std::make_shared<Result<PreparedRequest, ApiError>>(
        prepare(route, body, *model, options_, &stop));
    return [this, prepared, reply, received, seconds, charged] {
      if (*prepared) {
        submit(std::move(**prepared), reply, received, seconds, charged);
      } else {
        reply->error(prepared->error());
      }
    };
  };
  work(std::move(reply), bytes, std::move(job), seconds);
}

void Service::submit(PreparedRequest prepared, std::shared_ptr<Reply> reply,
                     Clock::time_point received, int seconds, bool charged) {
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
  std::int64_t charge = 0;  // tokens
  if (charged) {
    const auto taken = limits_.take(reply->caller(), tokens, Clock::now());
    reply->add_headers(limits_.headers(reply->caller(), Clock::now()));
    if (!taken) {
      reply->error(taken.error());
      return;
    }
    charge = *taken;
  }
  report_ignored(prepared.api.ignored, *reply);
  prepared.cache_salt = cache_salt(prepared.api, reply->caller());
  prepared.client = reply->caller().client;
  AnswerHead head;
  head.id = std::string(id_prefix(prepared.api.route)) + random_hex(16);
  head.request_id = reply->request_id();
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
    live.id = id;
    live.answer = std::move(answer);
    live.seconds = seconds;
    live.charged = charge;
    for (std::uint64_t t = id; t < next_ticket_; ++t) answer_of_[t] = &live;
    count_waiting(live, live.answer->waiting_choices(), live.answer->waiting_tokens());
    engine_->submit(std::move(submissions));
  } catch (const std::bad_alloc&) {
    const ApiError error = no_memory();
    if (live_.contains(id)) {
      cut_off(id, "memory", error);
    } else {
      limits_.give_back(reply->caller(), charge);
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

}  // namespace lathe
