// lathe bench: measurements, each against a limit or a copy measured in the same run.
#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <string_view>
#include <tuple>

#include "tools/bench/kernels/bench_attention.h"
#include "tools/bench/kernels/bench_codec.h"
#include "tools/bench/kernels/bench_exchange.h"
#include "tools/bench/kernels/bench_matmul.h"
#include "tools/bench/kernels/bench_sampling.h"
#include "tools/bench/model/bench_drafts.h"
#include "tools/bench/model/bench_engine.h"
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

// Flags that vLLM's `bench serve` has, too, have its names.
void add_bench_serve(Command bench, int& exit_code) {
  auto flags = std::make_shared<BenchServeOptions>();
  Command serve = bench.add_subcommand(
      "serve", "A server of OpenAI's routes under load: Lathe's, vLLM's or SGLang's");
  ServePromptOptions& prompts = flags->prompts;
  serve.add_option("--base-url", flags->base_url, "default http://127.0.0.1:30000");
  serve
      .add_option("--backend", flags->backend,
                  "openai: /v1/completions (the default); openai-chat (the default of tasks)")
      .one_of({"openai", "openai-chat"});
  serve.add_option("--endpoint", flags->endpoint, "another path of the same form");
  serve.add_option("--model", prompts.model, "its name in requests; default: the server's first");
  serve.add_option("--api-key", flags->api_key, "default: the environment's OPENAI_API_KEY");
  serve
      .add_option("--dataset-name", prompts.dataset,
                  "random: tokens (the default); tasks: the shipped test sets, whose answers are "
                  "marked; custom: JSON lines")
      .one_of({"random", "tasks", "custom"});
  serve.add_option("--dataset-path", prompts.path,
                   "custom's file: {\"prompt\", \"output_tokens\"} or {\"input_length\", "
                   "\"output_length\"}");
  serve.add_option("--task", prompts.tasks, "copy, retrieval, arithmetic (the default), chains")
      .delimiter(',');
  serve.add_option("--task-dir", prompts.task_dir, "default: models/tasks");
  serve.add_option("--num-prompts", prompts.prompts, "requests; default 1000").range(1, 10000000);
  const Flag rate =
      serve.add_option("--request-rate", flags->request_rate, "a second; default inf: all at once");
  serve.add_option("--burstiness", flags->burstiness, "1: a Poisson process; larger: more even")
      .needs(rate);
  serve.add_option("--max-concurrency", flags->max_concurrency, "requests at once; default: any")
      .positive();
  serve.add_option("--random-input-len", prompts.input_len, "tokens; default 1024")
      .range(1, 1 << 24);
  serve.add_option("--random-output-len", prompts.output_len, "tokens, at most; default 128")
      .range(1, 1 << 24);
  serve.add_option("--random-range-ratio", prompts.range_ratio,
                   "lengths are uniform in 1 - ratio to 1 + ratio times these; default 0");
  const Flag prefix =
      serve.add_option("--random-prefix-len", prompts.prefix_len, "tokens before them, shared")
          .range(0, 1 << 24);
  serve.add_option("--random-prefixes", prompts.prefixes, "different such prefixes; default 1")
      .range(1, 1 << 24)
      .needs(prefix);
  serve.add_option("--vocab-size", prompts.vocab, "random tokens are below it; default 1000")
      .range(2, 1 << 24);
  serve.add_option("--tokenizer", prompts.tokenizer,
                   "a model's folder: random tokens are sent as its text");
  serve.add_option("--temperature", prompts.temperature, "default 0");
  serve.add_option("--extra-body", flags->extra_body, "a JSON object: fields of every request");
  serve.add_option("--seed", prompts.seed, "of prompts and times; default 0");
  serve.add_option("--num-warmups", flags->warmups, "requests before; default 1").range(1, 1 << 20);
  serve.add_option("--goodput", flags->goodput,
                   "ttft:MS,tpot:MS,e2el:MS: requests within these limits are counted apart");
  const Flag json = serve.add_flag("--json", flags->json, "as data on stdout, under vLLM's names");
  serve.add_flag("--save-detailed", flags->detailed, "the times of each request").needs(json);
  serve.add_option("--svg", flags->picture, "a file for a picture");
  serve.callback([flags, serve, &exit_code] {
    const auto ok = check_dataset_flags(serve, flags->prompts.dataset);
    exit_code = ok ? bench_serve_command(*flags) : refuse(ok.error());
  });
}

}  // namespace

void add_bench_command(Command app, int& exit_code) {
  Command bench = app.add_subcommand("bench", "Measure, against a limit or a copy in the same run");
  bench.require_subcommand();

  struct CodecFlags {
    std::int64_t mebibytes = CodecBenchOptions{}.bytes >> 20;
    int repeats = CodecBenchOptions{}.repeats;
    std::string device = "cpu";
    bool json = false;
  };
  auto flags = std::make_shared<CodecFlags>();
  Command codec = bench.add_subcommand("codec", "The cache codecs against memcpy, one thread");
  codec.add_option("--device", flags->device, "cpu, or cuda against a copy on the GPU")
      .one_of({"cpu", "cuda"});
  codec.add_option("--mebibytes", flags->mebibytes, "read and written by a repeat; default 256")
      .range(1, 65536);
  codec.add_option("--repeats", flags->repeats, "medians are taken over these; default 9")
      .range(1, 10000);
  codec.add_flag("--json", flags->json, "as data on stdout");
  codec.callback([flags, &exit_code] {
    CodecBenchOptions options;
    options.bytes = flags->mebibytes << 20;
    options.repeats = flags->repeats;
    options.device = flags->device;
    exit_code = bench_codec_command(options, flags->json);
  });

  auto attention_flags = std::make_shared<BenchAttentionOptions>();
  Command attention =
      bench.add_subcommand("attention", "Attention kernels against the machine's limits");
  attention.add_option("--device", attention_flags->device, "cpu, or cuda: latent attention")
      .one_of({"cpu", "cuda"});
  attention
      .add_option("--repeats", attention_flags->repeats, "medians are taken over these; default 7")
      .range(1, 1000);
  attention.add_flag("--quick", attention_flags->quick, "fewer latent cases");
  attention.add_flag("--json", attention_flags->json, "as data on stdout");
  attention.callback(
      [attention_flags, &exit_code] { exit_code = bench_attention_command(*attention_flags); });

  struct MatmulFlags {
    std::string device = "cpu";
    BenchMatmulOptions options;
  };
  auto matmul_flags = std::make_shared<MatmulFlags>();
  Command matmul =
      bench.add_subcommand("matmul", "Products with weights against the machine's limits");
  matmul.add_option("--device", matmul_flags->device, "cpu").one_of({"cpu"});
  matmul
      .add_option("--repeats", matmul_flags->options.repeats, "the best of these counts; default 9")
      .range(1, 1000);
  matmul.add_option("--threads", matmul_flags->options.threads, "only with this many; default 1, 2")
      .range(1, 1024);
  matmul.add_option("--only", matmul_flags->options.only, "cases whose name begins so");
  matmul.add_flag("--json", matmul_flags->options.json, "as data on stdout");
  matmul.callback(
      [matmul_flags, &exit_code] { exit_code = bench_matmul_command(matmul_flags->options); });

  auto sampling_flags = std::make_shared<BenchSamplingOptions>();
  Command sampling =
      bench.add_subcommand("sampling", "Tokens from rows of logits against one read of them");
  sampling.add_option("--device", sampling_flags->device, "cpu, or cuda").one_of({"cpu", "cuda"});
  sampling.add_option("--vocab", sampling_flags->vocab, "tokens of a row; default 129280")
      .range(1, 1 << 24);
  sampling.add_option("--rows", sampling_flags->rows, "rows of a call; default 16").range(1, 1024);
  sampling.add_option("--repeats", sampling_flags->repeats, "the best of these counts; default 9")
      .range(1, 1000);
  sampling.add_option("--threads", sampling_flags->threads, "only with this many; default 1, 2")
      .range(1, 1024);
  sampling.add_flag("--json", sampling_flags->json, "as data on stdout");
  sampling.callback(
      [sampling_flags, &exit_code] { exit_code = bench_sampling_command(*sampling_flags); });

  auto exchange_flags = std::make_shared<BenchExchangeOptions>();
  Command exchange =
      bench.add_subcommand("exchange",
                           "Sums over the ranks of a group: GPUs, by peer memory and by "
                           "NCCL, or groups of a CPU's threads");
  exchange.add_option("--device", exchange_flags->device, "cuda, or cpu, where ranks are threads")
      .one_of({"cuda", "cpu"});
  const Flag gpus =
      exchange.add_option("--gpus", exchange_flags->gpus, "2, 4 or 8 of them; default 0,1")
          .delimiter(',')
          .range(0, 63);
  auto ranks = std::make_shared<std::int64_t>(2);
  exchange.add_option("--tp", *ranks, "2, 4 or 8 ranks: a CPU's, or the GPUs from 0 on; default 2")
      .range(2, 8)
      .excludes(gpus);
  exchange
      .add_option("--exchange", exchange_flags->exchange,
                  "peer, nccl, or auto: peer, and nccl where libnccl.so.2 is found")
      .one_of({"auto", "peer", "nccl"});
  exchange.add_option("--rows", exchange_flags->rows, "several by commas; default 1 to 8192")
      .delimiter(',')
      .range(1, 65536);
  exchange.add_option("--cols", exchange_flags->cols, "of a row; default 7168").range(8, 16384);
  exchange
      .add_option("--repeats", exchange_flags->repeats, "medians are taken over these; default 9")
      .range(1, 1000);
  exchange.add_flag("--json", exchange_flags->json, "as data on stdout");
  exchange.callback([exchange_flags, ranks, exchange, &exit_code] {
    auto& numbers = exchange_flags->gpus;
    const bool cpu = exchange_flags->device == "cpu";
    for (const char* flag : {"--gpus", "--exchange"}) {
      if (!cpu || !exchange.given(flag)) continue;
      exit_code =
          refuse({ErrorCode::invalid_argument, flag, "--device cuda with it", "--device cpu", ""});
      return;
    }
    if (!exchange.given("--gpus")) {
      numbers.resize(static_cast<std::size_t>(*ranks));
      std::iota(numbers.begin(), numbers.end(), 0);
    }
    exit_code = bench_exchange_command(*exchange_flags);
  });

  auto engine_flags = std::make_shared<BenchEngineOptions>();
  Command engine = bench.add_subcommand(
      "engine", "A whole model: prefill and decode over lengths, depths and batches");
  add_model_flags(engine, engine_flags->model);
  const auto counts = [](Flag option) { option.delimiter(',').range(0, 1 << 24); };
  counts(engine.add_option("--shared-prefix-tokens", engine_flags->shared_prefix_tokens,
                           "of the depth, equal in all requests of a batch; default 0"));
  Flag tests =
      engine
          .add_option("--tests", engine_flags->tests,
                      "these alone, with one load of the model: pp8192, pp1024x16 (requests at "
                      "once), tg128@960x64 (tokens in the cache before)")
          .delimiter(',');
  for (const auto& [names, lengths, help] :
       {std::tuple{"-p,--n-prompt", &engine_flags->prompts,
                   "tokens of prefill, several by commas; default 512"},
        {"-n,--n-gen", &engine_flags->answers, "tokens of decode; default 64"},
        {"-d,--n-depth", &engine_flags->depths, "tokens in the cache before; default 0"}}) {
    const Flag each = engine.add_option(names, *lengths, help);
    counts(each);
    tests.excludes(each);
  }
  tests.excludes(
      engine.add_option("-b,--batch", engine_flags->batches, "requests at once; default 1")
          .delimiter(',')
          .range(1, 65536));
  engine
      .add_option("-r,--repeats", engine_flags->repeats, "medians are taken over these; default 3")
      .range(1, 1000);
  engine
      .add_option("--draft-acceptance", engine_flags->draft_acceptance,
                  "with --draft: the share of guesses that are right, whatever the drafter "
                  "guesses; shows what drafts gain, with random weights too")
      .check([](const std::string& text) {
        char* end = nullptr;
        const double share = std::strtod(text.c_str(), &end);
        const bool fits = end != text.c_str() && *end == 0 && share > 0 && share <= 1;
        return fits ? "" : "wanted a share above 0, at most 1, got " + text;
      });
  engine.add_flag("--json", engine_flags->json, "as data on stdout");
  engine.callback([engine_flags, &exit_code] { exit_code = bench_engine_command(*engine_flags); });

  auto draft_flags = std::make_shared<BenchDraftsOptions>();
  Command drafts = bench.add_subcommand(
      "drafts", "Decoding with drafts against decoding without, in turns, over the tasks");
  add_model_flags(drafts, draft_flags->model);
  drafts
      .add_option("--task", draft_flags->tasks,
                  "copy, retrieval, arithmetic (the default), chains; several by commas")
      .delimiter(',');
  drafts.add_option("--task-dir", draft_flags->task_dir,
                    "folder of the test sets; default: tasks next to the model's");
  drafts.add_option("--limit", draft_flags->limit, "items of each task; default 64").positive();
  drafts.add_option("-b,--batch", draft_flags->batches, "requests at once; default 1,64")
      .delimiter(',')
      .range(1, 65536);
  drafts.add_option("-r,--repeats", draft_flags->repeats, "medians are taken over these; default 3")
      .range(1, 1000);
  drafts.add_flag("--json", draft_flags->json, "as data on stdout");
  drafts.callback([draft_flags, &exit_code] { exit_code = bench_drafts_command(*draft_flags); });

  auto server_flags = std::make_shared<BenchServerOptions>();
  Command server = bench.add_subcommand(
      "server", "The server under load, with a scripted model, against sending alone");
  const Flag only =
      server
          .add_option("--only", server_flags->only, "measurements, several by commas; default all")
          .delimiter(',')
          .check(check_bench_server_name);
  server.add_option("--churn", server_flags->churn_seconds, "seconds of churn; default 20")
      .range(1, 1 << 20);
  server.add_option("--peer", server_flags->peer,
                    "a command that starts a server to compare with, which prints its port; "
                    "tools/fastapi_server.py");
  const Flag server_json = server.add_flag("--json", server_flags->json, "as data on stdout");
  const Flag count = server
                         .add_option("--count-tokens", server_flags->count_tokens,
                                     "stream this many tokens and exit, as under callgrind")
                         .range(1, 1 << 20)
                         .excludes(only)
                         .excludes(server_json);
  server.add_flag("--parsing", server_flags->parsing, "look for reasoning and tool calls in them")
      .needs(count);
  server.callback([server_flags, &exit_code] { exit_code = bench_server_command(*server_flags); });
  add_bench_serve(bench, exit_code);
}

}  // namespace lathe
