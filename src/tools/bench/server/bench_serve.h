// lathe bench serve: a server of OpenAI's routes under load, be it Lathe's, vLLM's or SGLang's.
#pragma once

#include <cstdint>
#include <string>

#include "tools/bench/server/serve_prompts.h"

namespace lathe {

struct BenchServeOptions {
  std::string base_url = "http://127.0.0.1:30000";
  // openai: /v1/completions; openai-chat; empty: openai, but openai-chat for tasks, whose prompts
  // are a user's messages
  std::string backend;
  std::string endpoint;  // empty: the backend's
  std::string api_key;   // empty: OPENAI_API_KEY
  ServePromptOptions prompts;
  std::int64_t ready_seconds = 600;  // most seconds until the server is ready; 0: it is
  std::string extra_body;            // JSON
  std::string request_rate = "inf";
  float burstiness = 1;
  std::int64_t max_concurrency = 0;  // 0: no limit
  std::int64_t warmups = 0;
  std::string goodput;
  bool json = false;
  bool detailed = false;
  std::string picture;  // a file for SVG
};

/// Prints figures; the exit code is 1 if a request failed.
int bench_serve_command(const BenchServeOptions& options);

}  // namespace lathe
