#include "model/draft_layer.h"

#include <fmt/format.h>

#include "model/model.h"

namespace lathe {
namespace {

constexpr const char* kDraftFile = "mtp.safetensors";
constexpr const char* kWayOut = "--draft ngram needs no weights";

Error refuse(std::string wanted, std::string offered) {
  return {ErrorCode::unsupported, "--draft", std::move(wanted), std::move(offered), kWayOut};
}

}  // namespace

Result<ModelConfig> add_draft_layer(ModelConfig config) {
  if (!config.latent()) {
    return refuse("a model whose draft layer runs: DeepSeek V3 or V3.2, GLM with latent attention",
                  config.architecture);
  }
  if (config.draft_layers != 1) {
    return refuse("one draft layer (num_nextn_predict_layers 1)",
                  fmt::format("{}", config.draft_layers));
  }
  if (config.shared_draft_choice) {
    return refuse("a draft layer that chooses its keys in every step",
                  "index_share_for_mtp_iteration true");
  }
  config.drafts = true;
  config.groups.front().layers.push_back(config.layers);
  if (!config.mla.own_indexer.empty()) config.mla.own_indexer.push_back(1);
  config.moe.layer_has_experts.push_back(config.moe.experts > 0 ? 1 : 0);
  return config;
}

Result<void> Model::forward_draft(const OpsContext&, const ForwardArgs&) const {
  return refuse("a model with a draft layer", "one without");
}

Result<Checkpoint> open_checkpoint(const std::string& directory, const ModelConfig& config) {
  auto out = Checkpoint::open(directory, config.drafts ? kDraftFile : "");
  if (!out || !config.drafts) return out;
  const std::string joins = fmt::format("model.layers.{}.eh_proj.weight", config.layers);
  if (out->find(joins) != nullptr) return out;
  return refuse(fmt::format("a draft layer: model.layers.{}.* among the checkpoint's tensors, or "
                            "{} beside them",
                            config.layers, kDraftFile),
                "neither in " + directory);
}

}  // namespace lathe
