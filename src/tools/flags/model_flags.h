// The flags with which a subcommand starts a model, and what the user sees while it starts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/runtime.h"
#include "io/tokenizer/tokenizer.h"
#include "tools/flags/flags.h"

namespace lathe {

struct ModelFlags {
  RuntimeOptions runtime;
  std::string load_format = "auto";
  bool no_prefix_cache = false;
  bool no_overlap = false;
  bool explain = false;  // the whole plan instead of its summary
  bool quiet = false;
};

/// Adds --model, --device, --threads, --load-format and the flags of a plan and of the engine.
void add_model_flags(Command command, ModelFlags& flags);

/// Errors: no --model. The tokenizer is in its directory, with dummy weights too.
Result<void> need_tokenizer(const ModelFlags& flags);

/// A line about tokens that the model has no row for; "" if there are none.
std::string describe_tokens_beyond(const Tokenizer& tokenizer, std::int32_t vocab);

/// Prints why a model does not start and returns kExitRefused.
int refuse_start(const StartError& error);

/// Starts the model, and prints progress, weights, cache, workspace and the plan on stderr. Returns
/// null if the model was refused: the reason has been printed and `exit_code` is set. `on_progress`
/// is called with the loaded and the total bytes of weights.
std::unique_ptr<Runtime> start_model(
    const ModelFlags& flags, int& exit_code,
    const std::function<void(std::int64_t, std::int64_t)>& on_progress = nullptr);

}  // namespace lathe
