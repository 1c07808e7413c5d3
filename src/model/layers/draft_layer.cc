#include "model/layers/draft_layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/model.h"

namespace lathe {
namespace {

constexpr const char* kWayOut = "--draft ngram needs no weights";

Error refuse(std::string wanted, std::string offered) {
  return {ErrorCode::unsupported, "--draft", std::move(wanted), std::move(offered), kWayOut};
}

std::string count_text(std::int32_t layers) {
  return layers == 0   ? "no draft layer"
         : layers == 1 ? "1 draft layer"
                       : fmt::format("{} draft layers", layers);
}

// DeepSeek V4's draft layer has only a window, while other groups have compressed entries.
LayerGroupConfig& draft_group_of(ModelConfig& config) {
  return *std::ranges::find_if(
      config.groups, [](const LayerGroupConfig& group) { return !group.problem.two_sources(); });
}

}  // namespace

Result<ModelConfig> add_draft_layer(ModelConfig config) {
  const bool grouped = !config.is_mla() && !config.is_compressed();
  const bool streams = config.hyper.streams > 0 && !config.is_compressed();
  if (streams || (grouped && config.draft_layers == 0)) {
    return refuse(
        "a model whose draft layer runs: DeepSeek V3, V3.2 or V4, GLM, Qwen 3 Next or 3.5",
        fmt::format("{}, whose configuration has {}", config.architecture,
                    count_text(config.draft_layers)));
  }
  if (config.draft_blocks) {
    return refuse("a draft layer that predicts a token", "DSpark's blocks (dspark_block_size)");
  }
  if (config.draft_layers != 1) {
    return refuse("one draft layer (num_nextn_predict_layers 1)",
                  fmt::format("{} in the configuration of {}", count_text(config.draft_layers),
                              config.architecture));
  }
  config.drafts = true;
  if (config.draft_group) config.groups.push_back(*std::exchange(config.draft_group, {}));
  draft_group_of(config).layers.push_back(config.layers);
  if (!config.mla.own_indexer.empty()) config.mla.own_indexer.push_back(1);
  config.moe.layer_has_experts.push_back(config.moe.experts > 0 ? 1 : 0);
  return config;
}

Result<void> Model::forward_draft(const OpsContext&, const ForwardArgs&) const {
  return refuse("a model with a draft layer", "one without");
}

}  // namespace lathe
