#include "tools/bench/server/server_benches.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tools/bench/server/bench_serve.h"
#include "tools/bench/server/bench_server.h"
#include "tools/flags/command.h"

namespace lathe {
namespace {

// A flag of other datasets would be read by nothing.
Result<void> check_dataset_flags(const Command& serve, const std::string& dataset) {
  const struct {
    const char *flag, *datasets;
  } flags[] = {{"--dataset-path", "custom"},
               {"--task", "tasks"},
               {"--task-dir", "tasks"},
               {"--random-input-len", "random"},
               {"--random-range-ratio", "random"},
               {"--random-prefix-len", "random or custom"},
               {"--random-prefixes", "random or custom"},
               {"--vocab-size", "random or custom"},
               {"--tokenizer", "random or custom"}};
  for (const auto& [flag, datasets] : flags) {
    if (!serve.given(flag) || std::string_view(datasets).find(dataset) != std::string::npos)
      continue;
    return Error{ErrorCode::invalid_argument, flag,
                 fmt::format("--dataset-name {} with it", datasets), "--dataset-name " + dataset,
                 ""};
  }
  return {};
}

// Random times and tokens are a seed's; those of the shipped tasks at once have neither.
Result<void> check_times(const Command& serve, const BenchServeOptions& options) {
  if (options.request_rate != "inf") return {};
  if (serve.given("--burstiness")) {
    return Error{ErrorCode::invalid_argument, "--burstiness", "requests a second with it",
                 "--request-rate inf", "--request-rate 10, or leave it out"};
  }
  if (!serve.given("--seed") || options.prompts.dataset != "tasks") return {};
  return Error{ErrorCode::invalid_argument, "--seed",
               "--request-rate or random prompts with it, which it chooses",
               "--dataset-name tasks, all at once", "leave it out"};
}

Result<void> check_serve_flags(const Command& serve, const BenchServeOptions& options) {
  if (auto ok = check_dataset_flags(serve, options.prompts.dataset); !ok) return ok;
  if (auto ok = check_times(serve, options); !ok) return ok;
  if (options.warmups <= options.prompts.prompts) return {};
  return Error{
      ErrorCode::out_of_range, "--num-warmups",
      fmt::format("at most --num-prompts, {}: they are the first of them", options.prompts.prompts),
      fmt::format("{}", options.warmups), ""};
}

// Flags that vLLM's `bench serve` has, too, have its names.
void add_serve_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchServeOptions>();
  Command serve = bench.add_subcommand(
      "serve", "A server of OpenAI's routes under load: Lathe's, vLLM's or SGLang's");
  ServePromptOptions& prompts = flags->prompts;
  serve.add_option("--base-url", flags->base_url, "default http://127.0.0.1:30000").not_empty();
  serve
      .add_option("--backend", flags->backend,
                  "openai: /v1/completions (the default); openai-chat (the default of tasks)")
      .one_of({"openai", "openai-chat"});
  serve.add_option("--endpoint", flags->endpoint, "another path of the same form").not_empty();
  serve.add_option("--model", prompts.model, "its name in requests; default: the server's first")
      .not_empty();
  serve.add_option("--api-key", flags->api_key, "default: the environment's OPENAI_API_KEY")
      .not_empty();
  serve
      .add_option("--dataset-name", prompts.dataset,
                  "random: tokens (the default); tasks: the shipped test sets, whose answers are "
                  "marked; custom: JSON lines")
      .one_of({"random", "tasks", "custom"});
  serve
      .add_option("--dataset-path", prompts.path,
                  "custom's file: {\"prompt\", \"output_tokens\"} or {\"input_length\", "
                  "\"output_length\"}")
      .not_empty();
  serve.add_option("--task", prompts.tasks, "copy, retrieval, arithmetic (the default), chains")
      .delimiter(',');
  serve.add_option("--task-dir", prompts.task_dir, "default: models/tasks").not_empty();
  serve.add_option("--num-prompts", prompts.prompts, "requests; default 1000").range(1, 10000000);
  const Flag rate =
      serve.add_option("--request-rate", flags->request_rate, "a second; default inf: all at once");
  serve.add_option("--burstiness", flags->burstiness, "1: a Poisson process; larger: more even")
      .needs(rate)
      .numbers(1e-3, 1e6);
  serve.add_option("--max-concurrency", flags->max_concurrency, "requests at once; default: any")
      .positive();
  serve.add_option("--random-input-len", prompts.input_len, "tokens; default 1024")
      .range(1, 1 << 24);
  serve.add_option("--random-output-len", prompts.output_len, "tokens, at most; default 128")
      .range(1, 1 << 24);
  serve
      .add_option("--random-range-ratio", prompts.range_ratio,
                  "lengths are uniform in 1 - ratio to 1 + ratio times these; default 0")
      .numbers(0, 1);
  const Flag prefix =
      serve.add_option("--random-prefix-len", prompts.prefix_len, "tokens before them, shared")
          .range(0, 1 << 24);
  serve.add_option("--random-prefixes", prompts.prefixes, "different such prefixes; default 1")
      .range(1, 1 << 24)
      .needs(prefix);
  serve.add_option("--vocab-size", prompts.vocab, "random tokens are below it; default 1000")
      .range(2, 1 << 24);
  serve
      .add_option("--tokenizer", prompts.tokenizer,
                  "a model's folder: random tokens are sent as its text")
      .not_empty();
  serve.add_option("--temperature", prompts.temperature, "default 0").numbers(0, 100);
  serve.add_option("--extra-body", flags->extra_body, "a JSON object: fields of every request")
      .not_empty();
  serve.add_option("--seed", prompts.seed, "of prompts and times; default 0");
  serve.add_option("--num-warmups", flags->warmups, "requests before; default 1").range(1, 1 << 20);
  serve
      .add_option("--goodput", flags->goodput,
                  "ttft:MS,tpot:MS,e2el:MS: requests within these limits are counted apart")
      .not_empty();
  const Flag json = serve.add_flag("--json", flags->json, "as data on stdout, under vLLM's names");
  serve.add_flag("--save-detailed", flags->detailed, "the times of each request").needs(json);
  serve.add_option("--svg", flags->picture, "a file for a picture").not_empty();
  serve
      .add_option("--ready-check-timeout-sec", flags->ready_seconds,
                  "most seconds until the server is ready; default 600; 0: it is ready")
      .range(0, 1 << 20);
  serve.callback([flags, serve, &exit_code] {
    const auto ok = check_serve_flags(serve, *flags);
    exit_code = ok ? bench_serve_command(*flags) : refuse(ok.error());
  });
}

// A flag of measurements that do not run would be read by nothing.
Result<void> check_server_flags(const Command& server, const BenchServerOptions& options) {
  const auto runs = [&](const char* name) {
    return options.only.empty() || std::ranges::find(options.only, name) != options.only.end();
  };
  for (const auto& [flag, name] : {std::pair{"--churn", "churn"}, {"--peer", "peer"}}) {
    if (!server.given(flag) || runs(name)) continue;
    return Error{ErrorCode::invalid_argument, flag, fmt::format("--only {} with it", name),
                 fmt::format("--only {}", fmt::join(options.only, ",")), "leave it out"};
  }
  if (options.only.empty() || !runs("peer") || server.given("--peer")) return {};
  return Error{ErrorCode::invalid_argument, "--peer", "a command, for --only peer", "none",
               "--peer tools/fastapi_server.py"};
}

void add_server_bench(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchServerOptions>();
  Command server = bench.add_subcommand(
      "server", "The server under load, with a scripted model, against sending alone");
  const Flag only =
      server.add_option("--only", flags->only, "measurements, several by commas; default all")
          .delimiter(',')
          .check(check_bench_server_name);
  const Flag churn =
      server.add_option("--churn", flags->churn_seconds, "seconds of churn; default 20")
          .range(1, 1 << 20);
  const Flag peer =
      server
          .add_option("--peer", flags->peer,
                      "a command that starts a server to compare with, which prints its port; "
                      "tools/fastapi_server.py")
          .not_empty();
  const Flag server_json = server.add_flag("--json", flags->json, "as data on stdout");
  const Flag count = server
                         .add_option("--count-tokens", flags->count_tokens,
                                     "stream this many tokens and exit, as under callgrind")
                         .range(1, 1 << 20)
                         .excludes(only)
                         .excludes(churn)
                         .excludes(peer)
                         .excludes(server_json);
  server.add_flag("--parsing", flags->parsing, "look for reasoning and tool calls in them")
      .needs(count);
  server.callback([flags, server, &exit_code] {
    const auto ok = check_server_flags(server, *flags);
    exit_code = ok ? bench_server_command(*flags) : refuse(ok.error());
  });
}

}  // namespace

void add_server_benches(Command bench, int& exit_code) {
  add_server_bench(bench, exit_code);
  add_serve_bench(bench, exit_code);
}

}  // namespace lathe
