// Engine: a model that answers many requests at once.
#pragma once

#include <lathe/lathe.h>
#include <lathe/result.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lathe {
inline namespace api {

/// lathe_event with its own copies of the texts.
struct Event {
  std::uint64_t request = 0;
  lathe_event_kind kind = LATHE_EVENT_TOKEN;
  std::int32_t token = 0;
  std::int64_t position = 0;
  double logprob = 0;         // NaN if it was not requested
  std::string logprobs_json;  // empty if they were not requested
  std::string text;
  std::string finish_reason;  // empty: still running
  std::string error;
  std::int64_t prompt_tokens = 0, answer_tokens = 0, cached_tokens = 0;
};

class Engine {
 public:
  /// loaded, total: bytes of weights. Returning false stops the load with LATHE_ABORTED.
  using Progress = std::function<bool(std::int64_t loaded, std::int64_t total)>;

  /// options: JSON, see lathe_engine_load(): R"({"model": "models/tiny-v32"})". Rethrows what
  /// `progress` throws.
  static Result<Engine> load(const std::string& options, const Progress& progress = nullptr) {
    struct Call {
      const Progress* progress;
      std::exception_ptr thrown;
    } call{&progress, nullptr};
    const auto ask = [](std::int64_t loaded, std::int64_t total, void* user) -> int {
      auto& c = *static_cast<Call*>(user);
      try {
        return (*c.progress)(loaded, total) ? 0 : 1;
      } catch (...) {
        c.thrown = std::current_exception();
        return 1;
      }
    };
    lathe_engine* made = nullptr;
    const lathe_status status =
        lathe_engine_load(options.c_str(), progress ? +ask : nullptr, &call, &made);
    if (call.thrown) std::rethrow_exception(call.thrown);
    if (status != LATHE_OK) return last_error(status);
    return Engine(made);
  }

  /// JSON: model, device, context, plan.
  std::string json() const { return lathe_engine_json(handle_.get()); }

  Result<std::vector<std::int32_t>> encode(std::string_view text) {
    const std::int32_t* tokens = nullptr;
    std::int64_t count = 0;
    const char* data = text.empty() ? "" : text.data();
    const lathe_status status = lathe_engine_encode(
        handle_.get(), data, static_cast<std::int64_t>(text.size()), &tokens, &count);
    if (status != LATHE_OK) return last_error(status);
    return std::vector<std::int32_t>(tokens, tokens + count);
  }
  /// messages: JSON, [{"role": "user", "content": "..."}].
  Result<std::vector<std::int32_t>> encode_chat(const std::string& messages) {
    const std::int32_t* tokens = nullptr;
    std::int64_t count = 0;
    const lathe_status status =
        lathe_engine_encode_chat(handle_.get(), messages.c_str(), &tokens, &count);
    if (status != LATHE_OK) return last_error(status);
    return std::vector<std::int32_t>(tokens, tokens + count);
  }

  /// params: JSON, see lathe_engine_submit(). Returns the request's number.
  Result<std::uint64_t> submit(const std::vector<std::int32_t>& prompt,
                               const std::string& params = "{}") {
    static constexpr std::int32_t kNone = 0;
    std::uint64_t request = 0;
    const lathe_status status =
        lathe_engine_submit(handle_.get(), prompt.empty() ? &kNone : prompt.data(),
                            static_cast<std::int64_t>(prompt.size()), params.c_str(), &request);
    if (status != LATHE_OK) return last_error(status);
    return request;
  }
  /// The next step returns the request's last event.
  void cancel(std::uint64_t request) { lathe_engine_cancel(handle_.get(), request); }
  bool idle() const { return lathe_engine_idle(handle_.get()) != 0; }

  /// Runs one forward pass and returns its events.
  Result<std::vector<Event>> step() {
    std::int64_t count = 0;
    const lathe_status status = lathe_engine_step(handle_.get(), &count);
    if (status != LATHE_OK) return last_error(status);
    std::vector<Event> events;
    for (std::int64_t i = 0; i < count; ++i) {
      lathe_event e{};
      e.size = sizeof e;
      lathe_engine_event(handle_.get(), i, &e);
      const auto text = [](const char* t) { return std::string(t == nullptr ? "" : t); };
      events.push_back({e.request, e.kind, e.token, e.position, e.logprob, text(e.logprobs_json),
                        std::string(e.text, static_cast<std::size_t>(e.text_bytes)),
                        text(e.finish_reason), text(e.error), e.prompt_tokens, e.answer_tokens,
                        e.cached_tokens});
    }
    return events;
  }
  Result<std::string> stats_json() {
    const char* json = nullptr;
    const lathe_status status = lathe_engine_stats_json(handle_.get(), &json);
    if (status != LATHE_OK) return last_error(status);
    return std::string(json);
  }

 private:
  explicit Engine(lathe_engine* made) : handle_(made, &lathe_engine_free) {}
  std::unique_ptr<lathe_engine, void (*)(lathe_engine*)> handle_;
};

}  // namespace api
}  // namespace lathe
