// ScriptedModel: a model for benchmarks and tests of the engine's users. Its next token is a
// function of the last token and its position. It costs next to nothing, and answers have a closed
// form.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"

namespace lathe {

struct Script {
  std::int32_t vocab = 0;
  std::int32_t context = 0;  // most tokens, prompt and answer
  std::vector<std::int32_t> eos;
  /// The token after `token`, which is at `position`; `vocab` makes the logits NaN.
  std::function<std::int32_t(std::int32_t token, std::int32_t position)> next;
  /// Called in each forward pass with its number of rows; its error fails the pass. May be empty.
  std::function<Result<void>(std::int64_t rows)> on_forward;
};

class ScriptedModel : public Model {
 public:
  explicit ScriptedModel(Script script);
  const ModelConfig& config() const override { return config_; }
  std::int64_t weight_bytes() const override { return 0; }
  StepWeights step_weights(std::int64_t) const override { return {}; }
  Result<ForwardResult> forward(const OpsContext& ops, const ForwardArgs& args) const override;

 private:
  Script script_;
  ModelConfig config_;
};

}  // namespace lathe
