// The options of `lathe serve`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "server/http/http.h"
#include "server/openai/api_request.h"

namespace lathe {

struct ServerOptions {
  std::string model;  // the folder
  std::string host = "127.0.0.1";
  std::int32_t port = 30000;
  std::string uds;                 // a Unix socket's path, instead of both
  std::vector<std::string> names;  // the model's; the first is printed
  bool any_model = false;

  std::vector<std::string> api_keys;
  std::string admin_key;
  std::vector<std::string> cors_origins;
  std::vector<std::string> allowed_hosts;

  std::int32_t http_threads = 1;
  std::int32_t worker_threads = 2;
  HttpLimits http;
  std::int64_t max_queued_requests = 4096;
  std::int64_t max_queued_tokens = 0;    // 0: no limit
  std::int64_t requests_per_minute = 0;  // of each API key; 0: no limit
  std::int64_t tokens_per_minute = 0;    // of each API key, prompts and answers; 0: no limit
  bool isolate_prefix_cache = false;     // API keys do not share cached prompts
  std::int32_t queue_timeout = 0;        // seconds; 0: none
  std::int32_t request_timeout = 0;
  std::int32_t shutdown_timeout = 30;
  std::int32_t watchdog_timeout = 300;
  bool no_exit_on_failure = false;

  FieldLimits fields;
  std::int32_t stream_interval = 1;
  bool plain_content = false;     // --no-special-tokens-in-content: names of tokens are text there
  bool clamp_max_tokens = false;  // max_tokens beyond the context is reduced instead of refused
  bool model_sampling_defaults = true;
  nlohmann::ordered_json template_kwargs = nlohmann::ordered_json::object();

  // auto, or a name of a ReasoningFormat or ToolFormat, its own or another server's.
  std::string reasoning_parser = "auto";
  std::string tool_call_parser = "auto";
  std::string grammar_backend = "auto";  // auto, own or none; auto is own
  bool lenient_tool_schemas = false;     // leave out what cannot be followed in tools' schemas
  std::string reasoning_field = "both";  // both, reasoning_content, reasoning

  bool open_metrics = false;
  bool sglang_metrics = false;
  bool vllm_metrics = false;
  bool no_ui = false;
  std::int32_t log_requests = 1;  // 0 nothing, 1 ids and counts, 2 parameters, 3 texts
  bool log_json = false;          // one JSON object per line
  bool access_log = false;        // one line per response

  // Effective values by flag, as printed at start; never API keys.
  nlohmann::ordered_json effective = nlohmann::ordered_json::object();
};

}  // namespace lathe
