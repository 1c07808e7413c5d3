#include "tools/flags/model_flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "engine/runner/memory_plan.h"
#include "io/text/quote.h"
#include "kernels/devices/products_text.h"
#include "model/weights/kv_scales.h"
#include "plan/explain.h"
#include "tools/flags/command.h"
#include "tools/flags/override_flags.h"
#include "tools/flags/plan_flags.h"

namespace lathe {
namespace {

double megabytes(std::int64_t bytes) { return static_cast<double>(bytes) / 1e6; }

// Rewrites one line while weights load; nothing where stderr is not a terminal.
class LoadProgress {
 public:
  void operator()(std::int64_t done, std::int64_t total) {
    const auto at = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(at - start_).count();
    const double shown = std::chrono::duration<double>(at - shown_).count();
    if (isatty(STDERR_FILENO) == 0 || (done < total && shown < 0.1)) return;
    shown_ = at;
    print_err(fmt::format("\rloading   {:.0f} of {:.0f} MB   {:.0f} MB/s{}", megabytes(done),
                          megabytes(total), megabytes(done) / std::max(seconds, 1e-3),
                          done == total ? "\n" : ""));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point shown_{};
};

void print_started(const ModelFlags& flags, Runtime& r) {
  const std::int64_t weights = r.weight_bytes();
  if (!r.device_note().empty()) print_err(fmt::format("device    {}\n", r.device_note()));
  if (is_gpu(r.machine().device)) print_err(fmt::format("device    {}\n", r.machine().model));
  print_err(fmt::format("weights   {:.0f} MB in {:.2f} s ({:.0f} MB/s){}\n", megabytes(weights),
                        r.load_seconds(), megabytes(weights) / std::max(r.load_seconds(), 1e-3),
                        flags.runtime.dummy ? ", random" : ""));
  print_err(fmt::format("products  {}\n", products_text(r.precision())));
  const KvCache& cache = r.cache();
  print_err(fmt::format("cache     {} tokens, {} in pages of {}\n", cache.tokens(),
                        human_bytes(cache.bytes()), cache.page_size()));
  if (!r.kv_scales().empty()) {
    print_err(fmt::format("scales    {}{}\n", kv_scales_range(r.config(), r.kv_scales()),
                          !flags.runtime.kv_scales.empty() ? ""
                          : r.model().kv_scales().empty()  ? " (--kv-scales sets others)"
                                                           : " from the checkpoint"));
  }
  const DraftMemory draft = r.draft_memory();
  if (r.draft().kind != DraftKind::none) {
    print_err(fmt::format("drafts    {}, up to {} tokens of a request in a step\n",
                          r.draft().text(), r.plan().draft_tokens()));
  }
  if (draft.plan != nullptr) {
    print_err(fmt::format("          weights {}, cache {}, {}\n", human_bytes(draft.weight_bytes),
                          human_bytes(static_cast<std::int64_t>(draft.pool_bytes(cache.tokens()))),
                          summary(*draft.plan)));
  }
  if (is_gpu(r.machine().device)) {
    print_err(fmt::format(
        "{}", memory_table(r.plan(), r.machine(), r.weight_bytes(), r.cache().tokens(), draft)));
  } else {
    print_err(fmt::format("workspace at most {}\n",
                          human_bytes(r.plan().buffer_bytes() + draft.buffer_bytes())));
  }
  if (flags.explain) {
    print_err(fmt::format("{}", explain(r.plan())));
    if (draft.plan != nullptr) print_err(fmt::format("draft model\n{}", explain(*draft.plan)));
    return;
  }
  print_err(fmt::format("plan      {}\n", summary(r.plan())));
  for (const GroupPlan& g : r.plan().groups) {
    for (const std::string& note : g.plan.notes) print_err(fmt::format("chosen    {}\n", note));
  }
}

}  // namespace

void add_model_flags(Command command, ModelFlags& flags) {
  RuntimeOptions& r = flags.runtime;
  // A CPU's defaults; context_length 0 is the model's.
  r.plan_request.context_length = 0;
  r.plan_request.chunked_prefill_size = 2048;
  r.plan_request.max_running_requests = 64;
  command.add_option("--model,--model-path", r.model,
                     "directory with config.json, *.safetensors and tokenizer.json");
  command.add_option(
      "--device", r.device,
      "auto (a Hopper GPU that serves the model, else the CPU), cuda, cpu or ref (the "
      "slow oracle)");
  command.add_option("--gpus", r.gpus, "the GPUs of --tp by number: 0,1; default: the first ones")
      .not_empty();
  command
      .add_option(
          "--dtype", r.dtype,
          "of products with bf16, fp8 and 4-bit weights: float32; bfloat16 (x rounded, f32 sums); "
          "fp8, the same with x in e4m3 for fp8 weights; int8, the same with x in 8-bit integers "
          "for int4 and fp8 weights on a CPU; or auto: bfloat16 where the device multiplies it")
      .one_of({"auto", "float32", "bfloat16", "fp8", "int8"});
  command.add_option("--threads", r.threads, "0 = one per core").range(0, 1024);
  command
      .add_option("--load-format", flags.load_format,
                  "auto, safetensors, or dummy: random weights from the configuration alone")
      .one_of({"auto", "safetensors", "dummy"});
  command.add_option("--config", r.config_file, "a config.json, with --load-format dummy")
      .not_empty();
  add_override_flags(command, r.overrides);
  add_plan_flags(command, r.plan_request);
  command.add_option(
      "--draft,--speculative-algorithm", r.draft,
      "what guesses tokens, which changes no answer: none; ngram, from the request's own text; "
      "mtp, the checkpoint's draft layer; or the directory of a small model with the same tokens");
  command
      .add_option("--speculative-draft-model-path", r.draft_model,
                  "SGLang's flag for that directory, with --speculative-algorithm STANDALONE")
      .not_empty();
  command
      .add_option("--draft-tokens,--speculative-num-draft-tokens", r.plan_request.draft_tokens,
                  "guesses of a request in a step; default 4, 1 with --draft mtp")
      .range(1, kMaxDraftTokens);
  command
      .add_option("--kv-scales", r.kv_scales,
                  "a file of lathe calibrate, with a layout of one scale a layer; else the "
                  "checkpoint's scales, or 1")
      .not_empty();
  command.add_option("--random-seed", r.engine.seed, "of requests without a seed");
  command.add_flag("--disable-radix-cache,--no-prefix-cache", flags.no_prefix_cache,
                   "compute every prompt from scratch");
  command.add_flag("--disable-overlap-schedule", flags.no_overlap,
                   "on a GPU: start a step only when the one before it has been handled");
  command.add_flag("--debug-nan", r.engine.debug_nan,
                   "look for NaN and Inf after every layer and name the first");
  command.add_flag(
      "--check-ranks", r.check_ranks,
      "compare the ranks' rows after every exchange, which is slow, and name the first "
      "that differs");
  const Flag explain =
      command.add_flag("--explain", flags.explain, "print the whole plan at start");
  command.add_flag("--quiet", flags.quiet, "print nothing at start").excludes(explain);
}

Result<void> need_tokenizer(const ModelFlags& flags) {
  if (!flags.runtime.model.empty()) return {};
  return Error{ErrorCode::invalid_argument, "--model", "a directory with tokenizer.json", "nothing",
               "for example models/tiny-v32; --config replaces config.json and weights alone"};
}

std::string describe_tokens_beyond(const Tokenizer& tokenizer, std::int32_t vocab) {
  std::vector<std::int32_t> ids;
  for (std::int32_t id = vocab; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.has(id)) ids.push_back(id);
  }
  if (ids.empty()) return "";
  const auto shown = [&](std::int32_t id) {
    return fmt::format("{} ({})", quote(tokenizer.bytes_of(id)), id);
  };
  return fmt::format(
      "warning   the tokenizer has {} beyond the model's vocabulary of {}; prompts with such a "
      "token are refused\n",
      ids.size() == 1
          ? shown(ids[0])
          : fmt::format("{} tokens, {} to {},", ids.size(), shown(ids.front()), shown(ids.back())),
      vocab);
}

int refuse_start(const StartError& error) {
  if (const Error* e = std::get_if<Error>(&error)) return refuse(*e);
  print_err(explain(std::get<Refusal>(error)));
  return kExitRefused;
}

std::unique_ptr<Runtime> start_model(
    const ModelFlags& flags, int& exit_code,
    const std::function<void(std::int64_t, std::int64_t)>& on_progress) {
  RuntimeOptions options = flags.runtime;
  options.dummy = flags.load_format == "dummy";
  options.engine.prefix_cache = !flags.no_prefix_cache;
  options.engine.overlap = !flags.no_overlap;
  const auto refused = [&](const Error& e) {
    exit_code = refuse(e);
    return nullptr;
  };
  if (!options.config_file.empty() && !options.dummy) {
    return refused({ErrorCode::invalid_argument, "--config", "--load-format dummy with it",
                    "--load-format " + flags.load_format, "or --model DIR"});
  }
  if (options.model.empty() && options.config_file.empty()) {
    return refused({ErrorCode::invalid_argument, "--model",
                    "a directory with config.json and *.safetensors", "nothing",
                    "or --load-format dummy --config FILE"});
  }
  LoadProgress line;
  options.on_progress = [&](std::int64_t done, std::int64_t total) {
    if (!flags.quiet) line(done, total);
    if (on_progress) on_progress(done, total);
  };
  auto runtime = Runtime::create(options);
  if (!runtime) {
    exit_code = refuse_start(runtime.error());
    return nullptr;
  }
  if (!flags.quiet) print_started(flags, **runtime);
  return std::move(*runtime);
}

}  // namespace lathe
