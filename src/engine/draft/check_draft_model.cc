#include "engine/draft/check_draft_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/draft/model_drafter.h"
#include "io/files/read_file.h"
#include "io/text/quote.h"
#include "io/tokenizer/tokenizer.h"
#include "model/memory/fit_model.h"

namespace lathe {
namespace {

Error mismatch(std::string wanted, std::string offered) {
  return {ErrorCode::invalid_argument, "--draft", std::move(wanted), std::move(offered),
          "a draft model with the same tokenizer; --draft ngram needs no weights"};
}

std::string text_of(const Tokenizer& t, std::int32_t token) {
  return t.has(token) ? quote(t.bytes_of(token)) : "nothing";
}

}  // namespace

Result<ModelConfig> load_draft_config(const std::string& directory, const ModelConfig& target) {
  auto config = load_model_config(directory);
  if (!config) return config;
  if (config->vocab != target.vocab) {
    return mismatch(
        fmt::format("a draft model with the model's vocabulary, {} tokens", target.vocab),
        fmt::format("{} with {}", directory, config->vocab));
  }
  if (config->is_compressed() || !config->delta.layers.empty()) {
    return Error{ErrorCode::unsupported, "--draft",
                 "a draft model without a state between tokens, which a rejected draft would spoil",
                 fmt::format("{}, {}", directory, config->architecture),
                 "--draft ngram needs no weights"};
  }
  return config;
}

Result<void> check_same_tokens(const std::string& directory, const std::string& target) {
  const auto path = Tokenizer::file_in(target);
  if (!is_listed(path)) return {};
  // Copies of one tokenizer.json need no parsing.
  const auto ours = read_file(path), theirs = read_file(Tokenizer::file_in(directory));
  if (!theirs) return theirs.error();
  if (ours && *ours == *theirs && path.extension() == ".json") return {};
  const auto wanted = Tokenizer::load(target);
  if (!wanted) return wanted.error();
  const auto offered = Tokenizer::load(directory);
  if (!offered) return offered.error();
  for (std::int32_t t = 0; t < std::max(wanted->vocab_size(), offered->vocab_size()); ++t) {
    const std::string a = text_of(*wanted, t), b = text_of(*offered, t);
    if (a == b) continue;
    return mismatch(fmt::format("a draft model with the tokens of {}: {} is {}", target, t, a),
                    fmt::format("{} in {}", b, directory));
  }
  return {};
}

ModelPlanResult plan_draft_model(const std::string& directory, const ModelConfig& config,
                                 std::optional<std::int64_t> stored, const Machine& machine,
                                 const PlanRequest& target, const Registry& registry) {
  PlanRequest request;
  request.chunked_prefill_size = target.chunked_prefill_size;
  request.max_running_requests = target.max_running_requests;
  request.context_length = std::min<std::int64_t>(target.context_length, config.max_context);
  request.draft_tokens = kDraftModelDrafts;
  request.layers = config.layers;
  request.cuda_graph = target.cuda_graph;
  request.batch_invariant = target.batch_invariant;
  request.tp = target.tp;  // it runs on the target's ranks
  if (config.moe.experts > 0) {
    request.expert_split = target.expert_split;
    request.expert_parallel = target.expert_parallel;
    request.ep_size = target.ep_size;
  }
  request.exchange = target.exchange;
  request.exchange_dtype = target.exchange_dtype;
  request.logits_budget = target.logits_budget;
  request.gather_budget = target.gather_budget;
  request.activations_budget = target.activations_budget;
  ModelPlanResult plan = fit_model(config, stored, machine, request, registry);
  if (plan) return plan;
  Refusal refusal = plan.error();
  refusal.headline = fmt::format("the draft model {}: {}", directory, refusal.headline);
  return refusal;
}

Refusal beside_draft_model(Refusal refusal, const std::string& directory) {
  const bool memory =
      std::ranges::any_of(refusal.reasons, [](const Reason& r) { return r.rule == Rule::memory; });
  if (memory) refusal.headline += ", beside the draft model " + directory;
  return refusal;
}

}  // namespace lathe
