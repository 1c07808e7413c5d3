#include "tools/flags/serve_flags.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/files/read_file.h"
#include "io/template/chat_prompt.h"
#include "io/text/utf8.h"
#include "server/markup/reasoning_format.h"
#include "server/markup/tool_format.h"
#include "server/service/access.h"

namespace lathe {
namespace {

bool is_secret(const std::string& name) { return name == "api-key" || name == "admin-api-key"; }

std::string unknown_parser(const std::string& name, bool known, const std::string& own) {
  if (known || name == "auto") return {};
  return fmt::format("wanted auto, {} or another server's name of one, got {}", own, name);
}

std::string offered(const std::string& text) { return text.empty() ? "nothing" : text; }

void add_access_flags(Command c, ServeFlags& f) {
  ServerOptions& s = f.server;
  c.add_option("--host", s.host, "where to listen").not_empty();
  c.add_option("--port", s.port, "0 takes any and prints it").range(0, 65535);
  c.add_option("--uds", s.uds, "a Unix socket's path, instead of host and port").not_empty();
  c.add_option("--served-model-name", s.names, "the first is printed; default: the folder's name")
      .not_empty();
  c.add_flag("--any-model", s.any_model, "requests may name any model");
  c.add_option("--api-key", s.api_keys, "one or several; LATHE_API_KEY keeps it out of ps");
  c.add_option("--api-key-file", f.api_key_file, "a key a line").not_empty();
  c.add_option("--admin-api-key", s.admin_key,
               "for /flush_cache and to end the requests of others");
  c.add_option("--cors-origins", s.cors_origins, "of pages that may ask, such as https://a.example")
      .check([](const std::string& text) {
        return is_origin(text) ? ""
                               : fmt::format(
                                     "wanted scheme://host[:port] without a path, or *, "
                                     "got {}",
                                     offered(text));
      });
  c.add_option("--allowed-hosts", s.allowed_hosts, "names of this machine besides localhost")
      .check([](const std::string& text) {
        return is_host_name(text)
                   ? ""
                   : fmt::format("wanted a name or address without a port, or *, got {}",
                                 offered(text));
      });
}

void add_limit_flags(Command c, ServeFlags& f) {
  ServerOptions& s = f.server;
  HttpLimits& h = s.http;
  c.add_option("--http-threads", s.http_threads,
               "for connections; 1: the thread that turns tokens into text has them, too")
      .range(1, 64);
  c.add_option("--worker-threads", s.worker_threads, "for JSON, templates and tokens").range(1, 64);
  c.add_option("--max-connections", h.max_connections, "").positive();
  c.add_option("--max-body-bytes", f.max_body_bytes, "of a request").positive();
  c.add_option("--max-bodies-bytes", h.max_bodies_bytes,
               "of bodies being answered, and of unread answers")
      .positive();
  c.add_option("--max-header-bytes", f.max_header_bytes, "").range(1024, 1 << 20);
  c.add_option("--max-queued-requests", s.max_queued_requests,
               "answers without a token; beyond: 503")
      .positive();
  c.add_option("--max-queued-tokens", s.max_queued_tokens, "of their prompts; 0 = no limit")
      .range(0, std::int64_t{1} << 40);
  c.add_option("--requests-per-minute", s.requests_per_minute,
               "of each API key; beyond: 429; 0 = no limit")
      .range(0, 1 << 30);
  c.add_option("--tokens-per-minute", s.tokens_per_minute,
               "of each API key, prompts and answers; beyond: 429; 0 = no limit")
      .range(0, std::int64_t{1} << 40);
  c.add_flag("--isolate-prefix-cache", s.isolate_prefix_cache,
             "API keys do not share cached prompts");
  c.add_option(
       "--scheduling-policy", f.scheduling_policy,
       "fcfs: in order of arrival; priority: requests may have a priority, lower ones first")
      .one_of({"fcfs", "priority"});
  c.add_option("--priority-aging", f.model.runtime.engine.priority_aging,
               "steps after which a waiting request counts as one priority lower")
      .range(1, 1 << 20);
  c.add_option("--queue-timeout", s.queue_timeout, "seconds; 0 = none").range(0, 1 << 20);
  c.add_option("--request-timeout", s.request_timeout, "seconds; 0 = none").range(0, 1 << 20);
  c.add_option("--keep-alive-timeout", h.keep_alive_timeout, "seconds").range(1, 1 << 20);
  c.add_option("--header-timeout", h.header_timeout, "seconds").range(1, 1 << 20);
  c.add_option("--body-timeout", h.body_timeout, "seconds").range(1, 1 << 20);
  c.add_option("--slow-client-timeout", h.slow_client_timeout, "seconds without a byte taken")
      .range(1, 1 << 20);
  c.add_option("--sse-keep-alive", h.sse_keep_alive, "seconds between signs of life in a stream")
      .range(1, 1 << 20);
  c.add_option("--shutdown-timeout", s.shutdown_timeout, "seconds for requests under way")
      .range(0, 1 << 20);
  c.add_option("--watchdog-timeout", s.watchdog_timeout, "seconds without a step")
      .range(1, 1 << 20);
  c.add_flag("--no-exit-on-failure", s.no_exit_on_failure,
             "go on answering health when the engine fails");
}

void add_answer_flags(Command c, ServeFlags& f) {
  ServerOptions& s = f.server;
  c.add_option("--stream-interval", s.stream_interval, "tokens per event after the first")
      .range(1, 1 << 20);
  c.add_flag("--clamp-max-tokens", s.clamp_max_tokens,
             "max_tokens above the rest of the context is reduced, not refused");
  c.add_flag("--no-special-tokens-in-content", s.plain_content,
             "names of added tokens in messages are ordinary text");
  c.add_option("--max-logprobs", s.fields.max_logprobs, "").range(0, 1000);
  c.add_option("--max-n", s.fields.max_n, "choices of a prompt").range(1, 100000);
  c.add_option("--max-prompts", s.fields.max_prompts, "of a request").range(1, 100000);
  c.add_flag("--strict-fields", s.fields.strict, "unknown fields are errors");
  c.add_option("--chat-template", f.chat_template, "a file instead of the model's").not_empty();
  c.add_option("--chat-template-kwargs", f.template_kwargs,
               "a JSON object of the template's variables")
      .not_empty();
  c.add_option("--reasoning-parser", s.reasoning_parser,
               "auto: by the chat template; " + known_names<ReasoningFormat>() +
                   ", or what vLLM and SGLang call them")
      .check([](const std::string& name) {
        return unknown_parser(name, find_named_reasoning_format(name).has_value(),
                              known_names<ReasoningFormat>());
      });
  c.add_option("--tool-call-parser", s.tool_call_parser,
               "auto: by the chat template; " + known_names<ToolFormat>() +
                   ", or what vLLM and SGLang call them")
      .check([](const std::string& name) {
        return unknown_parser(name, find_named_tool_format(name).has_value(),
                              known_names<ToolFormat>());
      });
  c.add_option("--grammar-backend", s.grammar_backend,
               "what makes answers follow a schema; auto: own; none: such requests are rejected")
      .one_of({"auto", "own", "none"});
  c.add_flag("--lenient-tool-schemas", s.lenient_tool_schemas,
             "leave out what cannot be followed in tools' schemas; X-Lathe-Ignored names it");
  c.add_option("--reasoning-field", s.reasoning_field, "reasoning_content, reasoning or both")
      .one_of({"both", "reasoning_content", "reasoning"});
  c.add_option(
       "--sampling-defaults", f.sampling_defaults,
       "model: generation_config.json fills in what a request leaves out; openai: it does not")
      .one_of({"model", "openai"});
}

void add_watch_flags(Command c, ServeFlags& f) {
  ServerOptions& s = f.server;
  c.add_option("--metrics-names", f.metric_names, "sglang, vllm: their names as well as ours");
  c.add_flag("--no-ui", s.no_ui, "no page at /");
  c.add_flag("--open-metrics", s.open_metrics, "/metrics needs no key");
  c.add_option("--log-requests", s.log_requests,
               "0 nothing, 1 ids and counts, 2 with parameters, 3 with all texts")
      .range(0, 3);
  c.add_option("--log-format", f.log_format, "text, json").one_of({"text", "json"});
  c.add_flag("--access-log", s.access_log, "a line for each response");
  c.add_flag("--list-routes", f.list_routes, "print the routes and exit");
  c.add_flag("--list-fields", f.list_fields, "print the fields of requests and exit");
}

// A prompt and its answer have a token each at least. Refused before the weights are read.
Result<void> check_lengths(const PlanRequest& request) {
  const auto short_of = [](const char* flag, std::int64_t tokens, const char* zero) {
    return Error{ErrorCode::invalid_argument, flag,
                 "at least 2 tokens, one of a prompt and one of an answer",
                 fmt::format("{}", tokens), fmt::format("a larger one, or 0 for {}", zero)};
  };
  if (const std::int64_t n = request.context_length; n < 2 && n != 0) {
    return short_of("--context-length", n, "the model's");
  }
  // Larger pages hold more than a token.
  if (const std::int64_t n = request.max_total_tokens; n == 1 && request.page_size == 1) {
    return short_of("--max-total-tokens", n, "what fits");
  }
  return {};
}

// Each limit must let through what another one allows, or requests between them are refused as if
// they could succeed later.
Result<void> check_limits(const ServeFlags& flags) {
  const std::int64_t all = flags.server.http.max_bodies_bytes;
  if (flags.max_body_bytes <= all) return {};
  return Error{ErrorCode::invalid_argument, "--max-bodies-bytes",
               fmt::format("at least --max-body-bytes, {}", flags.max_body_bytes),
               fmt::format("{}", all), "a smaller --max-body-bytes"};
}

// Requests must be able to name the model, and logs to show its name on one line.
Result<void> check_names(const std::vector<std::string>& names) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  const auto fault = [](std::string offered) {
    return Error{ErrorCode::invalid_argument, "--served-model-name",
                 fmt::format("at most {} bytes without control characters", kMostModelBytes),
                 std::move(offered), "another name"};
  };
  for (const std::string& name : names) {
    if (name.size() > kMostModelBytes) return fault(fmt::format("{} bytes", name.size()));
    if (const auto ok = check_utf8(name, "--served-model-name"); !ok) return ok.error();
    const auto at = std::ranges::find_if(name, control);
    if (at != name.end()) {
      return fault(
          fmt::format("byte {:#04x} at {}", static_cast<unsigned char>(*at), at - name.begin()));
    }
  }
  return {};
}

// Aging is of priorities.
Result<void> check_aging(const Command& command, const std::string& policy) {
  for (const FlagValue& v : command.values()) {
    if (v.name != "priority-aging" || v.origin == "default" || policy == "priority") continue;
    return Error{ErrorCode::invalid_argument, "--priority-aging",
                 "--scheduling-policy priority with it", "--scheduling-policy " + policy, ""};
  }
  return {};
}

// An empty key is no key: the server would be open, or closed to all.
Result<void> check_given(const Command& command) {
  for (const FlagValue& v : command.values()) {
    if (!v.empty || (!is_secret(v.name) && v.name != "api-key-file")) continue;
    return Error{ErrorCode::invalid_argument, "--" + v.name, "a text", "an empty one",
                 "leave it out, and out of the environment, for a server without keys"};
  }
  return {};
}

// Headers carry no control characters, and no white space at their ends.
Result<void> check_key_text(const std::string& key, const std::string& field) {
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (key.empty() || key.front() == ' ' || key.back() == ' ' ||
      std::any_of(key.begin(), key.end(), control)) {
    return Error{ErrorCode::invalid_argument, field,
                 "a key without control characters, and without white space at its ends", "another",
                 ""};
  }
  return {};
}

// One key per line, without the white space around it.
Result<void> read_key_file(ServeFlags& flags) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::string& path = flags.api_key_file;
  const auto text = read_flag_file("--api-key-file", path);
  if (!text) return text.error();
  struct stat status {};
  if (stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode)) {
    if ((status.st_mode & S_IWOTH) != 0) {
      return Error{ErrorCode::invalid_argument, "--api-key-file", "a file that others cannot write",
                   path, "chmod 600"};
    }
    if ((status.st_mode & S_IROTH) != 0) {
      flags.warnings.push_back(
          fmt::format("--api-key-file {} can be read by other users; chmod 600", path));
    }
  }
  const std::size_t before = flags.server.api_keys.size();
  for (std::size_t at = 0; at < text->size();) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::size_t first = std::min(text->find_first_not_of(kSpace, at), end);
    if (first < end) {
      const std::size_t last = text->find_last_not_of(kSpace, end - 1);
      flags.server.api_keys.push_back(text->substr(first, last + 1 - first));
    }
    at = end + 1;
  }
  if (flags.server.api_keys.size() > before) return {};
  return Error{ErrorCode::invalid_argument, "--api-key-file", "a file with a key",
               path + " without", "one key per line"};
}

Result<void> check_keys(const Command& command, ServeFlags& flags) {
  ServerOptions& s = flags.server;
  if (const auto ok = check_given(command); !ok) return ok.error();
  for (const std::string& key : s.api_keys) {
    if (const auto ok = check_key_text(key, "--api-key"); !ok) return ok.error();
  }
  if (!s.admin_key.empty()) {
    if (const auto ok = check_key_text(s.admin_key, "--admin-api-key"); !ok) return ok.error();
  }
  if (flags.api_key_file.empty()) return {};
  if (const auto ok = read_key_file(flags); !ok) return ok.error();
  for (const std::string& key : s.api_keys) {
    if (const auto ok = check_key_text(key, "--api-key-file"); !ok) return ok.error();
  }
  return {};
}

}  // namespace

void add_serve_flags(Command command, ServeFlags& flags) {
  add_model_flags(command, flags.model);
  add_access_flags(command, flags);
  add_limit_flags(command, flags);
  add_answer_flags(command, flags);
  add_watch_flags(command, flags);
  command.read_environment();
}

Result<void> complete(const Command& command, ServeFlags& flags) {
  ServerOptions& s = flags.server;
  s.model = flags.model.runtime.model;
  s.http.max_body_bytes = static_cast<std::size_t>(flags.max_body_bytes);
  s.http.max_header_bytes = static_cast<std::size_t>(flags.max_header_bytes);
  if (s.names.empty()) {
    std::filesystem::path path = std::filesystem::path(s.model).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    s.names.push_back(path.filename().empty() ? "default" : path.filename().string());
  }
  if (const auto ok = check_names(s.names); !ok) return ok.error();
  if (const auto ok = check_lengths(flags.model.runtime.plan_request); !ok) return ok.error();
  if (const auto ok = check_limits(flags); !ok) return ok.error();
  if (const auto ok = check_aging(command, flags.scheduling_policy); !ok) return ok.error();
  if (const auto ok = check_keys(command, flags); !ok) return ok.error();
  for (const auto& [given, name] : {std::pair{s.requests_per_minute > 0, "--requests-per-minute"},
                                    {s.tokens_per_minute > 0, "--tokens-per-minute"},
                                    {s.isolate_prefix_cache, "--isolate-prefix-cache"}}) {
    if (!given || !s.api_keys.empty()) continue;
    return Error{ErrorCode::invalid_argument, name, "API keys to tell clients apart", "none",
                 "--api-key, --api-key-file"};
  }
  auto variables =
      read_chat_variables(flags.template_kwargs, "--chat-template-kwargs", /*tools=*/true);
  if (!variables) return variables.error();
  s.template_kwargs = std::move(*variables);
  s.fields.priorities = flags.scheduling_policy == "priority";
  flags.model.runtime.engine.priorities = s.fields.priorities;
  s.log_json = flags.log_format == "json";
  s.model_sampling_defaults = flags.sampling_defaults == "model";
  for (const std::string& names : flags.metric_names) {
    if (names == "sglang") {
      s.sglang_metrics = true;
    } else if (names == "vllm") {
      s.vllm_metrics = true;
    } else if (names != "lathe") {
      return Error{ErrorCode::invalid_argument, "--metrics-names", "lathe, sglang or vllm", names,
                   ""};
    }
  }
  for (const FlagValue& v : command.values()) {
    if (is_secret(v.name)) continue;
    std::string key = v.name;
    std::replace(key.begin(), key.end(), '-', '_');
    s.effective[key] = v.value;
  }
  return {};
}

std::string describe_effective(const Command& command) {
  std::string out;
  for (const FlagValue& v : command.values()) {
    const bool hidden = is_secret(v.name) && v.origin != "default";
    out += fmt::format("{:34} {:24} {}\n", "--" + v.name, hidden ? "(set)" : v.value, v.origin);
  }
  return out;
}

}  // namespace lathe
