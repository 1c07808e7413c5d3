// The C interface's engine: requests in, events with text out.
#include "engine/engine.h"
#include "base/json.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "capi/json.h"
#include "capi/sampling_json.h"
#include "capi/status.h"
#include "engine/request/text_stream.h"
#include "engine/runtime.h"
#include "io/template/chat_prompt.h"
#include "io/tokenizer/tokenizer.h"
#include "plan/plan_json.h"
#include "plan/plan_request_json.h"

using namespace lathe;
using namespace lathe::capi;

namespace lathe::capi {

struct Event {
  lathe_event view{};
  std::string text, logprobs, error;
};

// A request that has not ended.
struct OpenAnswer {
  TextStream text;
  std::int64_t tokens = 0;  // up to a stop string
};

}  // namespace lathe::capi

struct lathe_engine {
  lathe_engine(std::unique_ptr<Runtime> made, std::string model)
      : runtime(std::move(made)), folder(std::move(model)), tokenizer(Tokenizer::load(folder)) {}

  std::unique_ptr<Runtime> runtime;
  std::string folder;
  Result<Tokenizer> tokenizer;  // an error if the model has none
  std::optional<ChatTemplateFile> chat;
  std::string json, stats;
  std::vector<std::int32_t> tokens;
  std::unordered_map<std::uint64_t, OpenAnswer> open;  // by request; empty without a tokenizer
  std::vector<Event> events;

  void report(const StepReport& step);

 private:
  Event& add(lathe_event_kind kind, RequestId request);
};

Event& lathe_engine::add(lathe_event_kind kind, RequestId request) {
  Event& e = events.emplace_back();
  e.view.request = request.value;
  e.view.kind = kind;
  e.view.logprob = std::numeric_limits<double>::quiet_NaN();
  return e;
}

void lathe_engine::report(const StepReport& step) {
  events.clear();
  for (const Started& s : step.started) {
    add(LATHE_EVENT_STARTED, s.request).view.cached_tokens = s.cached_tokens;
  }
  for (const TokenEvent& t : step.tokens) {
    const auto answer = open.find(t.request.value);
    // A step may have sampled more tokens after a stop string; they are not part of the answer.
    if (answer != open.end() && answer->second.text.stopped()) continue;
    Event& e = add(LATHE_EVENT_TOKEN, t.request);
    e.view.token = t.sampled.token;
    e.view.position = t.position;
    if (t.sampled.logprob) {
      e.view.logprob = *t.sampled.logprob;
      Json top = Json::array();
      for (const TokenLogprob& l : t.sampled.top) {
        top.push_back({{"token", l.token}, {"logprob", l.logprob}});
      }
      e.logprobs = json_text(top);
    }
    if (answer == open.end()) continue;
    ++answer->second.tokens;
    e.text = answer->second.text.push(t.sampled.token);
    // Cancelling an answer that ended in this step does nothing.
    if (answer->second.text.stopped()) runtime->engine().cancel(t.request, FinishReason::stop);
  }
  for (const Finished& f : step.finished) {
    Event& e = add(LATHE_EVENT_FINISHED, f.request);
    e.view.finish_reason = name(f.reason).data();
    if (f.error) e.error = f.error->message();
    e.view.prompt_tokens = f.prompt_tokens;
    e.view.answer_tokens = f.answer_tokens;
    e.view.cached_tokens = f.cached_tokens;
    const auto answer = open.find(f.request.value);
    if (answer == open.end()) continue;
    e.text = answer->second.text.finish();
    if (answer->second.text.stopped()) {  // takes precedence over the engine's own reason
      e.view.finish_reason = name(FinishReason::stop).data();
      e.view.answer_tokens = answer->second.tokens;
      e.error.clear();
    }
    open.erase(answer);
  }
  for (Event& e : events) {
    e.view.text = e.text.c_str();
    e.view.text_bytes = std::ssize(e.text);
    if (!e.logprobs.empty()) e.view.logprobs_json = e.logprobs.c_str();
    if (!e.error.empty()) e.view.error = e.error.c_str();
  }
}

namespace {

constexpr std::int32_t kMostAging = 1 << 20;

Error not_one_of(const std::string& key, std::string wanted, const std::string& got) {
  return {ErrorCode::invalid_argument, key, std::move(wanted), fmt::format("\"{}\"", got), ""};
}

// The engine's salt of a text: 0 for none.
std::uint64_t salt_of(const std::string& text) {
  return text.empty() ? 0 : XXH3_64bits(text.data(), text.size()) | 1;
}

Result<void> set_load_option(const std::string& key, const Json& value, RuntimeOptions& options,
                             ProblemOptions& problem) {
  if (key == "model") return set_string(key, value, options.model);
  if (key == "device") return set_string(key, value, options.device);
  if (key == "gpus") return set_string(key, value, options.gpus);
  if (key == "dtype") return set_string(key, value, options.dtype);
  if (key == "draft") return set_string(key, value, options.draft);
  if (key == "seed") return set_seed(key, value, options.engine.seed);
  if (key == "prefix_cache") return set_bool(key, value, options.engine.prefix_cache);
  if (key == "scheduling_policy") {
    std::string policy;
    if (auto ok = set_string(key, value, policy); !ok) return ok;
    if (policy != "fcfs" && policy != "priority")
      return not_one_of(key, "fcfs or priority", policy);
    options.engine.priorities = policy == "priority";
    return {};
  }
  if (key == "priority_aging") {
    std::int32_t steps = 0;
    if (auto ok = set_int(key, value, steps); !ok) return ok;
    if (steps < 1 || steps > kMostAging) {
      return Error{ErrorCode::out_of_range, key, fmt::format("1 to {}", kMostAging),
                   fmt::format("{}", steps), ""};
    }
    options.engine.priority_aging = steps;
    return {};
  }
  if (key == "threads") {
    std::int32_t threads = 0;
    if (auto ok = set_int(key, value, threads); !ok) return ok;
    if (threads < 0 || threads > 1024) {
      return Error{ErrorCode::out_of_range, key, "0 to 1024", fmt::format("{}", threads), ""};
    }
    options.threads = threads;
    return {};
  }
  if (key == "load_format") {
    std::string format;
    if (auto ok = set_string(key, value, format); !ok) return ok;
    if (format != "auto" && format != "dummy") return not_one_of(key, "auto or dummy", format);
    options.dummy = format == "dummy";
    return {};
  }
  const ProblemOptions before = problem;
  const std::int32_t layers = options.plan_request.layers;
  if (auto ok = set_in_request(key, value, options.plan_request, problem); !ok) return ok;
  if (problem != before || options.plan_request.layers != layers) {
    return Error{ErrorCode::invalid_argument, key, "a key about cache, kernels or sizes",
                 "one about the model", "the model's config.json says so"};
  }
  return {};
}

Result<void> take_tokens(lathe_engine& engine, std::vector<std::int32_t> made,
                         const std::int32_t** tokens, std::int64_t* count) {
  engine.tokens = std::move(made);
  *tokens = engine.tokens.data();
  *count = std::ssize(engine.tokens);
  return {};
}

Json description(const lathe_engine& engine) {
  const Runtime& r = *engine.runtime;
  return {{"model", engine.folder},
          {"architecture", r.config().architecture},
          {"device", name(r.machine().device)},
          {"vocab", r.config().vocab},
          {"context_length", r.plan().context_length()},
          {"capacity", engine.runtime->engine().capacity()},
          {"eos", r.config().eos},
          {"plan", to_json(r.plan())}};
}

}  // namespace

lathe_status lathe_engine_load(const char* options, lathe_progress progress, void* user,
                               lathe_engine** engine) {
  return guard([&]() -> lathe_status {
    if (const auto ok = need_all({{options, "options"}, {engine, "engine"}}); !ok) {
      return fail(ok.error());
    }
    const auto object = parse_object(options, "options");
    if (!object) return fail(object.error());
    RuntimeOptions runtime;
    ProblemOptions problem;
    for (const auto& [key, value] : object->items()) {
      if (const auto ok = set_load_option(key, value, runtime, problem); !ok) {
        return fail(ok.error());
      }
    }
    if (runtime.model.empty()) {
      return fail(Error{ErrorCode::invalid_argument, "model", "a checkpoint's folder", "none", ""});
    }
    if (progress != nullptr) {
      runtime.on_progress = [&](std::int64_t loaded, std::int64_t total) {
        if (progress(loaded, total, user) != 0) throw Aborted();
      };
    }
    auto made = Runtime::create(runtime);
    if (!made) {
      if (const Error* error = std::get_if<Error>(&made.error())) return fail(in_json(*error));
      return fail(std::get<Refusal>(made.error()));
    }
    auto out = std::make_unique<lathe_engine>(*std::move(made), runtime.model);
    out->json = json_text(description(*out));
    *engine = out.release();
    return LATHE_OK;
  });
}

void lathe_engine_free(lathe_engine* engine) { delete engine; }

const char* lathe_engine_json(const lathe_engine* engine) {
  return engine == nullptr ? nullptr : engine->json.c_str();
}

lathe_status lathe_engine_encode(lathe_engine* engine, const char* text, int64_t bytes,
                                 const int32_t** tokens, int64_t* count) {
  return guard([&]() -> Result<void> {
    if (auto ok =
            need_all({{engine, "engine"}, {text, "text"}, {tokens, "tokens"}, {count, "count"}});
        !ok) {
      return ok;
    }
    if (bytes < 0) {
      return Error{ErrorCode::out_of_range, "bytes", "0 or more", fmt::format("{}", bytes), ""};
    }
    if (!engine->tokenizer) return engine->tokenizer.error();
    auto made = engine->tokenizer->encode({text, static_cast<std::size_t>(bytes)});
    if (!made) return made.error();
    return take_tokens(*engine, *std::move(made), tokens, count);
  });
}

lathe_status lathe_engine_encode_chat(lathe_engine* engine, const char* messages,
                                      const int32_t** tokens, int64_t* count) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all(
            {{engine, "engine"}, {messages, "messages"}, {tokens, "tokens"}, {count, "count"}});
        !ok) {
      return ok;
    }
    if (!engine->tokenizer) return engine->tokenizer.error();
    if (!engine->chat) {
      auto chat = load_chat_template(engine->folder);
      if (!chat) return chat.error();
      engine->chat = *std::move(chat);
    }
    const auto parsed = parse_list(messages, "messages");
    if (!parsed) return parsed.error();
    auto made = encode_chat(*parsed, *engine->chat, *engine->tokenizer);
    if (!made) return made.error();
    return take_tokens(*engine, *std::move(made), tokens, count);
  });
}

lathe_status lathe_engine_submit(lathe_engine* engine, const int32_t* prompt, int64_t count,
                                 const char* params, uint64_t* request) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{engine, "engine"}, {prompt, "prompt"}, {request, "request"}}); !ok) {
      return ok;
    }
    if (count < 0) {
      return Error{ErrorCode::out_of_range, "count", "0 or more", fmt::format("{}", count), ""};
    }
    auto read = read_params(params, engine->runtime->config().generation);
    if (!read) return read.error();
    auto stops = StopStrings::create(read->stop);
    if (!stops) return stops.error();
    if (!read->stop.empty() && !engine->tokenizer) return engine->tokenizer.error();
    Request made;
    made.prompt.assign(prompt, prompt + count);
    made.sampling = std::move(read->sampling);
    made.cache_salt = salt_of(read->cache_salt);
    made.priority = read->priority;
    const std::int64_t min_tokens = made.sampling.min_tokens;
    const auto id = engine->runtime->engine().submit(std::move(made));
    if (!id) return in_json(id.error());
    if (engine->tokenizer) {
      engine->open.emplace(
          id->value,
          OpenAnswer{TextStream(engine->tokenizer->detokenizer(/*skip_special_tokens=*/true),
                                *std::move(stops), min_tokens)});
    }
    *request = id->value;
    return {};
  });
}

lathe_status lathe_engine_cancel(lathe_engine* engine, uint64_t request) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(engine, "engine"); !ok) return ok;
    engine->runtime->engine().cancel({request});
    return {};
  });
}

int32_t lathe_engine_idle(const lathe_engine* engine) {
  return engine == nullptr || engine->runtime->engine().idle() ? 1 : 0;
}

lathe_status lathe_engine_step(lathe_engine* engine, int64_t* count) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{engine, "engine"}, {count, "count"}}); !ok) return ok;
    const auto report = engine->runtime->engine().step();
    if (!report) return report.error();
    engine->report(*report);
    *count = std::ssize(engine->events);
    return {};
  });
}

lathe_status lathe_engine_event(const lathe_engine* engine, int64_t index, lathe_event* event) {
  return guard([&]() -> Result<void> {
    if (auto ok = need(engine, "engine"); !ok) return ok;
    const std::int64_t count = std::ssize(engine->events);
    if (index < 0 || index >= count) {
      return Error{
          ErrorCode::out_of_range, "index",
          count == 0 ? "no event, as the step gave none" : fmt::format("0 to {}", count - 1),
          fmt::format("{}", index), ""};
    }
    return write_struct(engine->events[static_cast<std::size_t>(index)].view, event, "event");
  });
}

lathe_status lathe_engine_stats_json(lathe_engine* engine, const char** json) {
  return guard([&]() -> Result<void> {
    if (auto ok = need_all({{engine, "engine"}, {json, "json"}}); !ok) return ok;
    const EngineStats s = engine->runtime->engine().stats();
    const Json stats = {{"steps", s.steps},
                        {"prefill_rows", s.prefill_rows},
                        {"decode_rows", s.decode_rows},
                        {"drafts", Json(to_json(s.drafts))},
                        {"cached_tokens", s.cached_tokens},
                        {"preemptions", s.preemptions},
                        {"finished", s.finished},
                        {"waiting", s.waiting},
                        {"running", s.running},
                        {"held_pages", s.held_pages},
                        {"total_pages", s.total_pages},
                        {"prefix_cache_tokens", s.prefix_cache_tokens}};
    engine->stats = json_text(stats);
    *json = engine->stats.c_str();
    return {};
  });
}
