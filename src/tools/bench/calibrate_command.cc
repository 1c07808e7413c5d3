// lathe calibrate: scales of a per-tensor cache, from the keys and values of a text.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <memory>

#include "io/files/read_file.h"
#include "model/weights/kv_scales.h"
#include "tools/eval/eval_run.h"
#include "tools/flags/command.h"
#include "tools/flags/model_flags.h"
#include "tools/flags/override_flags.h"

namespace lathe {
namespace {

struct CalibrateFlags {
  ModelFlags model;
  std::string text;
  std::string output;
  std::int64_t window = 0;  // 1024, or the context
};

Result<std::vector<std::int32_t>> read_tokens(const std::string& file, const Tokenizer& tokenizer) {
  const auto text = read_flag_file("--text", file);
  if (!text) return text.error();
  auto tokens = tokenizer.encode(*text);
  if (!tokens || tokens->size() >= 2) return tokens;
  return Error{ErrorCode::invalid_argument, "--text", "a text of at least two tokens",
               fmt::format("{} in {}", tokens->size(), file), ""};
}

int run_calibrate(CalibrateFlags flags) {
  if (const auto ok = need_tokenizer(flags.model); !ok) return refuse(ok.error());
  const auto tokenizer = Tokenizer::load(flags.model.runtime.model);
  if (!tokenizer) return refuse(tokenizer.error());
  const auto tokens = read_tokens(flags.text, *tokenizer);
  if (!tokens) return refuse(tokens.error());
  std::ofstream file;
  if (flags.output != "-") {
    file.open(flags.output, std::ios::app);  // fails before the work, and keeps the old contents
    if (!file) {
      return refuse({ErrorCode::io, "--output", "a file that can be written", flags.output, ""});
    }
    file.close();
  }

  // A GPU counts what saturates, but knows no largest value.
  flags.model.runtime.device = name(Device::cpu);
  flags.model.runtime.count_values = true;
  flags.model.runtime.dummy = flags.model.load_format == "dummy";
  // A narrower cache would round the keys that later layers are computed from.
  flags.model.runtime.plan_request.kv_dtype = "bf16";
  flags.model.runtime.engine.prefix_cache = false;
  const auto evaluator = Evaluator::create(flags.model.runtime, *tokenizer);
  if (!evaluator) return refuse_start(evaluator.error());
  const auto score = (*evaluator)->score(*tokens, flags.window, {});
  if (!score) return refuse(score.error());

  Runtime& runtime = (*evaluator)->runtime();
  const auto values = runtime.stored_values();
  if (!values) return refuse(values.error());
  std::vector<TensorScales> scales;
  for (const ValueCounts& counts : *values) {
    scales.push_back({scale_for(counts.largest_key), scale_for(counts.largest_value)});
  }
  const std::string text = kv_scales_text(runtime.config(), scales);
  if (flags.output == "-") {
    print_out(text);
    return kExitOk;
  }
  file.open(flags.output);
  file << text;
  file.close();
  if (!file) {
    return refuse({ErrorCode::io, "--output", "a file that can be written", flags.output, ""});
  }
  print_err(fmt::format("{}: scales of {} layers from {} tokens: {}\n", flags.output, scales.size(),
                        tokens->size(), kv_scales_range(runtime.config(), scales)));
  return kExitOk;
}

}  // namespace

void add_calibrate_command(Command app, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();
  RuntimeOptions& r = flags->model.runtime;
  r.plan_request.context_length = 0;
  r.plan_request.chunked_prefill_size = 2048;
  r.plan_request.max_running_requests = 8;
  Command cmd = app.add_subcommand("calibrate", "Find the scales of an fp8 cache for --kv-scales");
  cmd.add_option("--model,--model-path", r.model,
                 "directory with config.json, *.safetensors and tokenizer.json");
  add_override_flags(cmd, r.overrides);
  cmd.add_option("--text", flags->text, "a file of text such as the model will read").required();
  cmd.add_option("--output,-o", flags->output, "the file of scales, or - for standard output")
      .required();
  cmd.add_option("--window", flags->window,
                 "tokens that see each other; default 1024, or the context")
      .range(2, 1 << 30);
  cmd.add_option("--threads", r.threads, "0 = one per core").range(0, 1024);
  cmd.add_option("--load-format", flags->model.load_format, "auto, safetensors or dummy")
      .one_of({"auto", "safetensors", "dummy"});
  cmd.callback([flags, &exit_code] { exit_code = run_calibrate(*flags); });
}

}  // namespace lathe
