// Service: the server's state in the thread that serves HTTP: requests in progress, the engine's
// news, overload, drain.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/enum.h"
#include "engine/engine_thread.h"
#include "server/http/http.h"
#include "server/metrics/metrics.h"
#include "server/service/access.h"
#include "server/service/live_answer.h"
#include "server/service/options.h"
#include "server/service/prepare.h"
#include "server/service/rate_limits.h"
#include "server/service/reply.h"
#include "server/service/served_model.h"
#include "server/service/workers.h"

namespace lathe {

#define LATHE_SERVICE_STATES(X) X(loading) X(ready) X(draining) X(failed)
LATHE_ENUM(ServiceState, LATHE_SERVICE_STATES)

class Service {
 public:
  /// Answers a request, in the serving thread (server/routes/routes.h).
  using Dispatch = void (*)(Service& service, HttpRequest request, std::shared_ptr<Reply> reply);

  /// Whether a request's body is worth reading, by its head; called from any thread.
  using ReadsBody = bool (*)(const Service& service, const HttpRequest& request);

  /// The form of a path's errors; called from any thread.
  using FindErrorBody = Reply::ErrorBody (*)(std::string_view path);

  struct Routes {
    Dispatch dispatch;
    ReadsBody reads_body;
    FindErrorBody error_body;
  };

  Service(const ServerOptions& options, std::unique_ptr<HttpServer> http,
          const Tokenizer& tokenizer, const ChatTemplateFile* chat, Routes routes);
  ~Service();

  /// Runs the serving thread; returns when the server has ended.
  void run();
  HttpServer& http() { return *http_; }
  const ServerOptions& options() const { return options_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  const ChatTemplateFile* chat() const { return chat_; }
  /// From any thread.
  void set_progress(std::int64_t done, std::int64_t total);
  void serve(std::shared_ptr<const ServedModel> model, Engine& engine);
  void end(int exit_code);
  int exit_code() const { return exit_code_; }

  // For routes, in the serving thread.
  const AccessRules& access() const { return access_; }
  ServiceState state() const { return state_; }
  std::string_view health() const;  // "ok", "loading", "draining", "stuck", "failed"
  bool takes_requests() const;
  std::int64_t loaded_percent() const { return percent_.load(std::memory_order_relaxed); }
  const ServedModel& model() const { return *model_; }
  std::shared_ptr<const ServedModel> shared_model() const { return model_; }
  Metrics& metrics() { return metrics_; }
  const EngineStats& stats() const { return stats_; }
  std::int64_t created() const { return created_; }
  double generation_rate() const { return rate_; }
  std::int64_t queued() const { return queued_; }
  bool idle() const { return live_.empty() && preparing_.empty(); }

  /// Set once nobody needs a job's result: the client has gone, the time is up, the server stops.
  using StopFlag = std::atomic<bool>;
  /// Runs `job` on a worker, then the function that it returns in this thread, unless the flag is
  /// set. `bytes`: of the body that it reads. `seconds`: time limit; 0: --request-timeout.
  void work(std::shared_ptr<Reply> reply, std::size_t bytes,
            std::function<std::function<void()>(const StopFlag& stop)> job, int seconds = 0);
  void generate(ApiRoute route, std::string body, std::shared_ptr<Reply> reply);
  /// Answers with one token that went through the queue, or 503 after `seconds`. No key is charged:
  /// a probe must not say that the server is ill because its key is used up.
  void probe(int seconds, std::shared_ptr<Reply> reply);
  /// Ends requests named `rid`, or all. A caller without the admin key ends its own.
  std::optional<ApiError> abort(const std::string& rid, bool all, const Caller& caller);
  /// Names a request's unknown fields in its answer's head, and counts them.
  void report_ignored(const std::vector<std::string>& names, Reply& reply);
  void flush_cache(double timeout, std::shared_ptr<Reply> reply);
  std::string metrics_page();

 private:
  using Clock = LiveAnswer::Clock;
  struct Live {
    std::uint64_t id = 0;  // its first ticket
    std::unique_ptr<LiveAnswer> answer;
    int seconds = 0;  // time limit; 0: none
    // Counted in queued_ and queued_tokens_.
    std::int64_t choices = 0;
    std::int64_t tokens = 0;
    std::int64_t charged = 0;  // tokens, to limits_
  };
  // A request on a worker, or waiting for one.
  struct Preparing {
    std::shared_ptr<Reply> reply;
    std::shared_ptr<StopFlag> stop;
    Clock::time_point received;
    int seconds = 0;  // time limit; 0: none
  };
  struct Flush {
    std::shared_ptr<Reply> reply;
    Clock::time_point until;
  };

  // In service.cc
  void handle(HttpRequest request, std::shared_ptr<HttpAnswer> answer);
  std::int64_t waiting_choices() const { return queued_ + std::ssize(preparing_); }
  ApiError queue_full(std::int64_t choices) const;
  std::optional<ApiError> refuse_new() const;
  void start(ApiRoute route, std::string body, std::shared_ptr<Reply> reply, int seconds,
             bool charged);
  void submit(PreparedRequest prepared, std::shared_ptr<Reply> reply, Clock::time_point received,
              int seconds, bool charged);
  std::uint64_t cache_salt(const ApiRequest& api, const Caller& caller) const;

  // In service_events.cc
  void take_news();
  void take_events(std::span<const TicketEvent> events, double step_seconds);
  void take_step(const EngineNews& news);
  void count_waiting(Live& live, std::int64_t choices, std::int64_t tokens);
  /// Removes an answer that has ended.
  void remove(std::uint64_t id);
  /// Ends an answer and its requests with an error, which a client that has gone does not see.
  void cut_off(std::uint64_t id, std::string_view why, const ApiError& error);
  void log_end(LiveAnswer& answer, std::string_view finish);
  void log_step(const EngineNews& news);

  // In service_end.cc
  [[noreturn]] void leave_at_once();
  void on_signal(int number);
  /// Counts an exception that ended a connection. The log has at most one a tick.
  void count_failure(std::string_view what);
  void tick();
  static void cut_off(Preparing& job, const ApiError& error);
  void time_out(Clock::time_point now);
  void try_flushes(Clock::time_point now);
  void stop_if_drained();

  ServerOptions options_;
  std::unique_ptr<HttpServer> http_;
  const Tokenizer& tokenizer_;
  const ChatTemplateFile* chat_;
  Routes routes_;
  AccessRules access_;
  RateLimits limits_;
  std::uint64_t salt_seed_;  // of this process, so that no client can choose salts that collide
  std::int64_t created_;

  ServiceState state_ = ServiceState::loading;
  std::shared_ptr<const ServedModel> model_;
  std::atomic<std::int64_t> percent_{0};
  Metrics metrics_;
  EngineStats stats_;
  std::atomic<int> exit_code_{0};
  bool ending_ = false;
  Clock::time_point drain_until_{};

  std::map<std::uint64_t, Live> live_;                  // by first ticket
  std::unordered_map<std::uint64_t, Live*> answer_of_;  // by ticket
  std::uint64_t next_ticket_ = 1;
  std::map<std::uint64_t, Preparing> preparing_;
  std::uint64_t last_job_ = 0;
  std::int64_t queued_ = 0;         // choices without a token
  std::int64_t queued_tokens_ = 0;  // tokens of their prompts
  std::vector<Flush> flushes_;
  std::int64_t rate_tokens_ = 0;  // answer tokens when the rate was last computed
  double rate_ = 0;
  bool failure_logged_ = false;  // since the last tick
  std::int64_t decode_steps_ = 0;

  std::mutex mailbox_mutex_;
  std::vector<EngineNews> mailbox_;  // steps not taken yet; under the mutex
  std::vector<EngineNews> spare_;    // past steps, kept to reuse their memory; under the mutex
  // Kept as members to reuse their memory in every step.
  std::vector<EngineNews> taken_;       // what take_news() took last
  std::size_t taken_steps_ = 0;         // number of them handled
  std::size_t taken_events_ = 0;        // events of the next one handled
  std::vector<std::uint64_t> touched_;  // answers with events in this step
  std::unique_ptr<EngineThread> engine_;
  std::unique_ptr<Workers> workers_;  // last: jobs refer to all of the above
};

}  // namespace lathe
