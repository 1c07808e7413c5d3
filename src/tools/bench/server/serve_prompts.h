// The requests of lathe bench serve: random tokens, a file, or the shipped tasks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/bench/server/serve_client.h"
#include "tools/eval/eval_tasks.h"

namespace lathe {

struct ServePromptOptions {
  std::string dataset = "random";  // random, custom or tasks
  std::string path;                // of custom: JSON lines
  std::vector<std::string> tasks = {"arithmetic"};
  std::string task_dir = "models/tasks";
  std::int64_t prompts = 1000;
  // random, and lines of custom without a prompt.
  std::int64_t input_len = 1024;
  std::int64_t output_len = 128;  // of the others, too, where the file says nothing
  float range_ratio = 0;          // lengths are uniform in len * (1 - ratio) to len * (1 + ratio)
  std::int64_t prefix_len = 0;    // tokens before them that prompts share
  std::int64_t prefixes = 1;      // prompt i begins with prefix i mod prefixes
  std::int64_t vocab = 1000;      // tokens are below it
  std::string tokenizer;          // a model's folder, to write random tokens as text for chat

  bool chat = false;
  std::string model;  // the name in requests
  float temperature = 0;
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  // in every body
  std::uint64_t seed = 0;
};

struct ServeLoad {
  std::vector<ServeRequest> requests;
  // Of tasks: what answers are marked by; empty: they are not marked.
  std::vector<std::pair<EvalTaskKind, EvalItem>> items;
};

/// Requests without times. Errors: the file's, with the line; a dataset that the route cannot have.
Result<ServeLoad> make_serve_load(const ServePromptOptions& options);

/// Sets when requests are due: `rate` a second (0: all at once), in intervals of a gamma
/// distribution with shape `burstiness` (1: a Poisson process; larger: more even), as vLLM's.
void set_due_times(std::vector<ServeRequest>& requests, double rate, double burstiness,
                   std::uint64_t seed);

}  // namespace lathe
